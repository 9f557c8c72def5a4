"""The text of the pictures in Chinese."""

import re

# in English -> in Chinese; # stands for a number, in the same order in both
_CHINESE = {
    "parallel-executor: two replicas, each with a copy of the weights": "parallel-executor：两个副本，各有一份权重",
    "parallel-do: a block of the program on two places": "parallel-do：程序的一个块，在两个 place 上",
    "towers: one graph with two towers, which share the variables": "towers：一张图，两个塔，共用变量",
    "average-gradients: two towers, each differentiated by itself": "average-gradients：两个塔，各自求梯度",
    "mirrored: strategy.run on two replicas, each with a copy of the variables": "mirrored：strategy.run 在两个副本上，各有一份变量",
    "layers: one replica whose layers are on two devices": "layers：一个副本，各层分在两个设备上",
    "layers with two replicas of two stages each: four devices": "layers：两个副本，各两个阶段，共四个设备",
    "asynchronous: two workers, which do not wait for each other": "asynchronous：两个工作者，互不等待",
    "layers: what two stages compute when, with #, # and # micro-batches": "layers：#、#、# 个微批次时两个阶段何时算什么",
    "asynchronous: three workers by --schedule # --staleness #": "asynchronous：按 --schedule # --staleness # 的三个工作者",
    "replica #: scope #": "副本 #：作用域 #",
    "replica #: two devices": "副本 #：两个设备",
    "strategy.run, replica #": "strategy.run，副本 #",
    "with pd.do(), place #": "with pd.do()，place #",
    "tower #": "塔 #",
    "stage #": "阶段 #",
    "stage #: first layers": "阶段 #：前面的层",
    "stage #: last layers": "阶段 #：后面的层",
    "worker #": "工作者 #",
    "worker #: a thread": "工作者 #：一个线程",
    "global batch": "全局批次",
    "# rows: # + #": "# 行：# + #",
    "fed whole, split in the graph": "整个送入，在图里切开",
    "rows #–#": "第 #–# 行",
    "padded to their longest": "补齐到其中最长的一行",
    "rows of the replica, in micro-batches": "副本的行，分成微批次",
    "each stage gets what it reads": "各阶段得到自己要读的",
    "rows #–# of x and y": "x 和 y 的第 #–# 行",
    "forward pass": "前向",
    "with copy # of the weights": "用第 # 份权重",
    "with the shared variables": "用共用的变量",
    "its layers, one micro-batch": "自己的层，一个微批次",
    "rows #–#, with the own copy": "第 #–# 行，用自己的一份",
    "share of the loss": "损失的一份",
    "own sum / tokens of the batch": "自己的和 / 全批次词数",
    "mean loss": "平均损失",
    "over its own n# tokens": "对自己的 n# 个词",
    "on its own share: L#": "对自己的一份：L#",
    "sum of the losses": "损失之和",
    "L = L# + L#, differentiated once": "L = L# + L#，求一次梯度",
    "backward pass": "反向",
    "forward and backward pass": "前向和反向",
    "gradient g# of its share": "自己那一份的梯度 g#",
    "gradient g# of its mean loss": "自己平均损失的梯度 g#",
    "on the tower’s device": "在塔的设备上",
    "with the kept activations": "用保留的激活值",
    "g#, clipped by its norm": "g#，按它的范数裁剪",
    "gradient g#": "梯度 g#",
    "of both stages, all micro-batches": "两个阶段，全部微批次",
    "sum of the gradients": "梯度之和",
    "of all micro-batches": "全部微批次",
    "all-reduce, by the engine": "all-reduce，由引擎做",
    "g = g# + g#, for each parameter": "g = g# + g#，逐个参数",
    "g = g# + g#, for each variable": "g = g# + g#，逐个变量",
    "added up, for each variable": "逐个变量相加",
    "weighted average": "加权平均",
    "sum over the replicas, if several": "若有几个副本，再相加",
    "clipped by the norm over all stages": "按所有阶段的总范数裁剪",
    "sum of the replicas": "各副本之和",
    "g = g# + g#, clipped by its norm": "g = g# + g#，按它的范数裁剪",
    "clip g by its norm": "按 g 的范数裁剪 g",
    "then update copy #": "再更新第 # 份",
    "then one update": "再更新一次",
    "weights": "权重",
    "weights, copy #": "权重，第 # 份",
    "and optimiser state": "以及优化器状态",
    "one copy, and the optimiser state": "一份，以及优化器状态",
    "one update of the weights": "一次更新权重",
    "shared weights": "共用的权重",
    "and one optimiser state": "以及一份优化器状态",
    "lock: read": "加锁：读",
    "all weights at once": "一次读全部权重",
    "own copy #": "自己的一份 #",
    "as old as its read": "读时的那一版",
    "lock: update": "加锁：更新",
    "with g# alone, when it is ready": "只用 g#，算好就更新",
    "rows, activations, losses": "行、激活值、损失",
    "gradients": "梯度",
    "between replicas": "副本之间",
    "between places": "place 之间",
    "between towers": "塔之间",
    "one worker at a time": "一次一个工作者",
    "weights, optimiser state": "权重、优化器状态",
    "F, B: forward and backward pass of a micro-batch; B is assumed to take twice as long": "F、B：一个微批次的前向和反向；这里假设反向用时是前向的两倍",
    "U: one update, with the gradients of all micro-batches": "U：用全部微批次的梯度更新一次",
    "each update makes the next version of the weights": "每次更新产生下一版权重",
    "bar: from a worker’s read to its update; number: the staleness of the update": "横条：从工作者读权重到它更新；数字：这次更新的陈旧度",
}
_SAME = re.compile(r"[\w.()# ]*[._=(:][\w.()#+/=, ]*|place #|U")  # code and formulas


def chinese(text: str) -> str:
    """Return a line of a picture in Chinese.

    Raises:
      KeyError: if it has not been translated.
    """
    key = re.sub(r"\d+", "#", text)
    if key not in _CHINESE and _SAME.fullmatch(key):
        return text
    numbers = iter(re.findall(r"\d+", text))
    return re.sub("#", lambda _: next(numbers), _CHINESE[key])
