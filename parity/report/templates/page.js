"use strict";
// A chart tells the row of its table that the pointer, or an arrow key, is at.
for (const chart of document.querySelectorAll("figure > .chart")) {
  const figure = chart.parentElement, plot = chart.querySelector(".plot");
  const names = [...figure.querySelectorAll("thead th")].map((each) => each.textContent);
  const rows = [...figure.querySelector("tbody").rows];
  const numbers = rows.map((row) => Number(row.cells[0].textContent));
  const [first, last] = [numbers[0], numbers[numbers.length - 1]];
  const cursor = chart.querySelector(".cursor");
  if (!cursor || Number.isNaN(first)) continue;
  const place = (i) => (last > first ? (numbers[i] - first) / (last - first) : 0.5);
  let at = -1;
  const tell = (i) => {
    at = Math.min(Math.max(i, 0), rows.length - 1);
    cursor.hidden = false;
    cursor.style.left = `${100 * place(at)}%`;
    figure.querySelector("output").textContent =
      [...rows[at].cells].map((cell, k) => `${names[k]} ${cell.textContent}`).join("; ");
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    tell(rows.reduce((best, _, i) => (Math.abs(place(i) - x) < Math.abs(place(best) - x) ? i : best), 0));
  });
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: rows.length - 1 };
    if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    tell(moves[event.key]);
  });
}
