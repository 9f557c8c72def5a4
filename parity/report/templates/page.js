"use strict";
(async () => {
  const plots = [...document.querySelectorAll(".plot")];
  let figures; // by the id of the element that each is drawn in
  const dark = matchMedia("screen and (prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  const printed = 680; // pixels that fit across a printed page

  async function unpacked(name) {
    const packed = atob(document.getElementById(name).textContent);
    const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).text();
  }

  async function load() {
    figures = JSON.parse(await unpacked("figures"));
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
  }

  // Colours of text and lines, light or dark; the colours of the data suit both.
  function colours(isDark) {
    const [ink, line, paper] = isDark
      ? ["#e6e9ed", "#353c45", "#1b2027"] : ["#1b1f24", "#d5dae0", "#ffffff"];
    return {
      "font.color": ink,
      "xaxis.gridcolor": line, "yaxis.gridcolor": line,
      "xaxis.linecolor": line, "yaxis.linecolor": line,
      "hoverlabel.bgcolor": paper, "hoverlabel.bordercolor": line, "hoverlabel.font.color": ink,
      "legend.bgcolor": "rgba(0,0,0,0)",
    };
  }

  function number(value) {
    return value === null || value === undefined ? "-" : String(value);
  }

  function percent(share) {
    return share < 0.1 ? `${+(100 * share).toPrecision(2)}%` : `${Math.round(100 * share)}%`;
  }

  // A heat map arrives with the values of report.json: the shares of their bounds are its colours.
  function prepare(figure) {
    for (const trace of figure.data.filter((each) => each.type === "heatmap")) {
      const { tensors, relative, beside, after } = trace.meta;
      trace.z = trace.customdata.map((row, i) => row.map((share) => share === null ? null
        : share === 0 ? -beside / 2 : share > 1 ? 1 + (after[i] ? 1.5 : 0.5) * beside : share));
      trace.text = trace.customdata.map((row, i) => row.map((share, j) =>
        `${tensors[i]}<br>step ${trace.x[j]}: ${share === null ? "not judged"
          : `${percent(share)} of its bound`}<br>relative error ${number(relative[i][j])}`));
      figure.layout.yaxis.names = figure.layout.yaxis.ticktext;
    }
  }

  // On a narrow screen the names of the rungs stand for those of their tensors.
  function rungs(figure) {
    const { tensors } = figure.data[0].meta;
    const kinds = tensors.map((name) => name.split("/")[0]);
    const first = kinds.map((kind, i) => i).filter((i) => i === 0 || kinds[i] !== kinds[i - 1]);
    return { "yaxis.tickvals": first, "yaxis.ticktext": first.map((i) =>
      kinds[i].replace("clipped_gradient", "clipped").replace("gradient_norm", "norm")) };
  }

  function names(figure) {
    return { "yaxis.tickvals": figure.data[0].y, "yaxis.ticktext": figure.layout.yaxis.names };
  }

  function look(plot, isDark, width) {
    const figure = figures[plot.id];
    const change = colours(isDark);
    if (figure.data[0].type === "heatmap") {
      Object.assign(change, (width || plot.clientWidth) < 620 ? rungs(figure) : names(figure));
    }
    if (width) Object.assign(change, { width });
    return change;
  }

  // Arrow keys move from point to point, as a pointer does; the values are also put in words.
  function keyboard(plot) {
    const { data } = figures[plot.id];
    const map = data[0].type === "heatmap";
    const shown = data.map((trace, i) => i).filter((i) => data[i].hoverinfo !== "skip");
    const across = data[shown[0]].x.length;
    let column = 0, row = 0, entered = false;
    const tell = () => {
      const x = data[shown[0]].x[column];
      const told = map
        ? data[0].text[row][column].replaceAll("<br>", ", ")
        : `${typeof x === "number" ? "step " : ""}${x}: ` + shown.map((i) => {
          const { name, y, customdata, type } = data[i];
          const from = type === "bar" || !customdata ? y : customdata;
          return `${name} ${number(from[column])}`;
        }).join("; ");
      document.getElementById(`${plot.id}-values`).textContent = told;
      Plotly.Fx.hover(plot, map
        ? { xval: x, yval: row }
        : shown.map((i) => ({ curveNumber: i, pointNumber: column })), "xy");
    };
    plot.addEventListener("keydown", (event) => {
      const rows = map ? data[0].meta.tensors.length : 1;
      const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], Home: [-across, 0], End: [across, 0] };
      if (map) Object.assign(moves, { ArrowDown: [0, 1], ArrowUp: [0, -1] });
      if (event.key === "Escape") { Plotly.Fx.unhover(plot); return; }
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      if (entered) {
        const [right, down] = moves[event.key];
        column = Math.min(across - 1, Math.max(0, column + right));
        row = Math.min(rows - 1, Math.max(0, row + down));
      }
      entered = true;
      tell();
    });
    plot.addEventListener("blur", () => Plotly.Fx.unhover(plot));
  }

  try {
    await load();
  } catch (error) {
    for (const plot of plots) {
      plot.style.height = "auto";
      plot.textContent = `No figure: ${error.message}. The table below holds its numbers.`;
    }
    return;
  }
  const coarse = matchMedia("(pointer: coarse)").matches;
  for (const plot of plots) {
    const figure = figures[plot.id];
    prepare(figure);
    figure.layout.dragmode = coarse ? false : "zoom"; // a finger scrolls the page
    await Plotly.newPlot(plot, figure.data, figure.layout, config);
    await Plotly.relayout(plot, look(plot, dark.matches));
    keyboard(plot);
  }
  const again = () => plots.forEach((plot) => Plotly.relayout(plot, look(plot, dark.matches)));
  dark.addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; again(); }
  });
  addEventListener("beforeprint", () =>
    plots.forEach((plot) => Plotly.relayout(plot, look(plot, false, printed))));
  addEventListener("afterprint", () => plots.forEach((plot) =>
    Plotly.relayout(plot, { ...look(plot, dark.matches), width: null, autosize: true })));
  document.documentElement.dataset.ready = "yes";
})();
