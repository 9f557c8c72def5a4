"""Fluid's ParallelDo: programs as users of Fluid wrote them, and what is refused."""

import numpy as np
import pytest

# What follows up to the next rule runs in a process of the framework.


def _regression(places: int) -> dict:
    """Train a regression as a program of Fluid's time does, and by hand in NumPy."""
    import paddle

    from paddle_impl.strategies.parallel_do import Executor, ParallelDo, get_places

    paddle.seed(3)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, 3], "float64")
        y = paddle.static.data("y", [-1, 1], "float64")
        pd = ParallelDo(get_places(device_count=places, device_type="CPU"), use_nccl=False)
        with pd.do():
            x_, y_ = pd.read_input(x), pd.read_input(y)
            weight = paddle.create_parameter([3, 1], "float64", name="weight")
            predicted = paddle.matmul(x_, weight)
            cost = paddle.mean((predicted - y_) ** 2)
            pd.write_output(cost)
            pd.write_output(predicted)
        cost, predicted = pd()
        average = paddle.mean(cost)
        testing = main.clone(for_test=True)
        paddle.optimizer.SGD(0.1).minimize(average)

    executor = Executor(paddle.CPUPlace())
    executor.run(startup)
    value = np.array(paddle.static.global_scope().find_var("weight").get_tensor())
    draw = np.random.default_rng(0)
    found, expected = [], []
    for _ in range(3):
        feed = {"x": draw.normal(size=(7, 3)), "y": draw.normal(size=(7, 1))}
        found.append(
            [
                each.tolist()
                for each in executor.run(main, feed, [average, cost, predicted.name, weight])
            ]
        )
        share = 7 // places
        bounds = [
            slice(k * share, (k + 1) * share if k + 1 < places else 7) for k in range(places)
        ]
        errors = feed["x"] @ value - feed["y"]
        costs = [float((errors[rows] ** 2).mean()) for rows in bounds]
        gradients = [
            2 * feed["x"][rows].T @ errors[rows] / len(errors[rows]) for rows in bounds
        ]
        outputs = (feed["x"] @ value).tolist()
        value = value - 0.1 * sum(gradients) / places
        expected.append([np.mean(costs).item(), costs, outputs, value.tolist()])
    (tested,) = executor.run(testing, feed, [average.name])
    return {"found": found, "expected": expected, "tested": float(tested)}


def _summed() -> list:
    """Sum an output with a value per row after the block; the shared factor is fed whole."""
    import paddle

    from paddle_impl.strategies.parallel_do import Executor, ParallelDo, get_places

    x = paddle.static.data("x", [-1], "float64")
    factor = paddle.static.data("factor", [1], "float64")
    pd = ParallelDo(get_places(3))
    with pd.do():
        pd.write_output(pd.read_input(x) * factor)
    total = paddle.sum(pd())
    feed = {"x": np.arange(8.0), "factor": np.array([10.0])}
    found = Executor(paddle.CPUPlace()).run(feed=feed, fetch_list=[total, pd()])
    return [each.tolist() for each in found]


def _refused() -> dict[str, str]:
    import paddle

    from paddle_impl.strategies.parallel_do import Executor, ParallelDo, get_places

    said = {}

    def refused(name, function, *arguments):
        try:
            function(*arguments)
        except ValueError as error:
            said[name] = str(error)

    def program(after):
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            x = paddle.static.data("x", [-1, 2], "float64")
            pd = ParallelDo(get_places(2))
            with pd.do():
                doubled = pd.read_input(x) * 2
                pd.write_output(doubled)
            after(x, doubled, pd)
            feed = {"x": np.zeros((3, 2))}
            return Executor(paddle.CPUPlace()).run(feed=feed)

    def within(build):
        with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
            x = paddle.static.data("x", [-1, 2], "float64")
            build(ParallelDo(get_places(2)), x)

    def block(pd, body):
        with pd.do():
            body()

    refused("early", within, lambda pd, x: pd())
    refused("inside", within, lambda pd, x: block(pd, pd))
    refused("empty", within, lambda pd, x: (block(pd, lambda: pd.read_input(x)), pd()))
    refused("read outside", within, lambda pd, x: pd.read_input(x))
    refused("write outside", within, lambda pd, x: pd.write_output(x))
    refused("computed", within, lambda pd, x: block(pd, lambda: pd.read_input(x * 2)))
    refused("two blocks", within, lambda pd, x: [block(pd, lambda: None) for _ in range(2)])
    refused("two", within, lambda pd, x: [block(p, lambda: None) for p in (pd, ParallelDo([]))])
    refused("product", program, lambda x, doubled, pd: pd() * 3)
    refused("mean of rows", program, lambda x, doubled, pd: paddle.mean(pd()))
    refused("mean of x", program, lambda x, doubled, pd: paddle.mean(x))
    refused("sum of a sum", program, lambda x, doubled, pd: paddle.sum(paddle.sum(pd()) * 2))
    refused("device", get_places, 2, "XPU")
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        x, y = (paddle.static.data(name, [-1, 2], "float64") for name in "xy")
        pd = ParallelDo(get_places(2))
        with pd.do():
            pd.write_output(pd.read_input(x) + pd.read_input(y))
        feeds = {"unequal": (2, 3), "one row": (1, 1)}
        for name, (first, second) in feeds.items():
            feed = {"x": np.zeros((first, 2)), "y": np.zeros((second, 2))}
            refused(name, Executor(paddle.CPUPlace()).run, None, feed, [pd()])
    return said


# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 2, 3])
def test_a_program_of_fluids_time_runs_as_it_did(frameworks, places):
    """The last place gets the rows that are left over, and the places' costs are averaged."""
    result = frameworks["paddle"].call(_regression, places)
    for found, expected in zip(result["found"], result["expected"], strict=True):
        for mine, its in zip(found, expected, strict=True):
            assert np.ravel(mine) == pytest.approx(np.ravel(its), rel=1e-12, abs=1e-13)
    assert result["tested"] > 0


def test_outputs_are_joined_and_sums_are_of_all_places(frameworks):
    assert frameworks["paddle"].call(_summed) == [280.0, [10.0 * k for k in range(8)]]


def test_what_would_compute_something_else_is_refused(frameworks):
    said = frameworks["paddle"].call(_refused)
    outside = "is called outside the block of the ParallelDo"
    assert said.pop("product").startswith("scale reads ")
    assert said.pop("sum of a sum").startswith("scale reads ")
    assert "is taken after the block" in said.pop("mean of rows")
    assert said.pop("computed").startswith("read_input takes data, not ")
    assert said == {
        "early": "the outputs of a ParallelDo exist only after its block",
        "inside": "the outputs of a ParallelDo exist only after its block",
        "empty": "the block of the ParallelDo wrote no output",
        "read outside": f"read_input {outside}",
        "write outside": f"write_output {outside}",
        "two blocks": "a program can have one ParallelDo, with one block",
        "two": "a program can have one ParallelDo, with one block",
        "mean of x": "reduce_mean reads 'x' outside the block of the ParallelDo; allowed: the "
        "sum or mean of an output",
        "device": "device_type is 'XPU'; allowed: 'CPU', 'CUDA'",
        "unequal": "rows of the inputs: {'x': 2, 'y': 3}; allowed: one number, at least 2",
        "one row": "rows of the inputs: {'x': 1, 'y': 1}; allowed: one number, at least 2",
    }
