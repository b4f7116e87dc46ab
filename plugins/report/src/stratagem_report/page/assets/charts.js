// Draws the page's charts by uPlot, in the page's colours: hover shows values in all charts at the same place, dragging
// zooms, and a double click shows everything again.
const stratagemReport = (() => {
  "use strict";
  const drawn = new Map(); // key → {plot, box, zoom}
  let charts = {};

  const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Significant digits, as the page's tables have them; very large and small ones by their power of ten.
  const number = value => {
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(2).replace("e+", "e");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(4)}`;
  };
  const time = seconds => {
    if (seconds < 120) return `${+seconds.toPrecision(3)} s`;
    const minutes = Math.floor(seconds / 60);
    return minutes < 120 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };

  // Round numbers; uPlot's own end at 1e32, and losses that explode don't.
  const ticks = (low, high) => {
    if (high <= low) return [low];
    const rough = (high / 4 - low / 4), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(each => each >= rough * 0.999);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); found.length < 8 && at * step <= high + step * 1e-9; at++) found.push(at * step + 0); // not -0
    return found;
  };
  const widened = (low, high, fromZero) => {
    if (low == null) return [0, 1];
    if (fromZero) low = Math.min(low, 0);
    const margin = high > low ? (high / 20 - low / 20) : Math.abs(high) / 10 || 1;
    return [fromZero && low === 0 ? 0 : low - margin, high + margin];
  };

  const stackedUp = data => {
    const [xs, ...lines] = data, sums = xs.map(() => 0);
    return [xs, ...lines.map(line => line.map((value, at) => sums[at] += value ?? 0)).reverse()];
  };

  const options = (chart, box) => {
    const soft = color("soft"), grid = {stroke: color("grid"), width: 1};
    const overStep = chart.over === "step", xText = overStep ? value => Math.round(value).toLocaleString("en") : time;
    const yText = value => chart.unit === "%" ? `${Math.round(100 * value)} %` : `${number(value)}${chart.unit && ` ${chart.unit}`}`;
    const order = chart.stacked ? [...chart.lines.keys()].reverse() : [...chart.lines.keys()];
    const axis = {stroke: soft, font: "12px system-ui, sans-serif", grid, ticks: {show: false}};
    const few = chart.data[0].length < 40;
    return {
      width: box.clientWidth, height: 190,
      cursor: {sync: {key: `over ${chart.over}`}, drag: {x: true, y: false, setScale: true}, points: {size: 7}},
      legend: {live: true},
      scales: {
        x: {time: false, range: (plot, low, high) => high > low ? [low, high] : [low - 1, high + 1]},
        y: {range: (plot, low, high) => chart.stacked ? [0, 1] : widened(low, high, chart.fromZero)},
      },
      axes: [
        {...axis, size: 26, gap: 4, splits: (plot, i, low, high) => ticks(low, high).filter(at => !overStep || Number.isInteger(at)),
          values: (plot, splits) => splits.map(xText)},
        {...axis, size: 64, gap: 4, splits: (plot, i, low, high) => ticks(low, high), values: (plot, splits) => splits.map(yText)},
      ],
      series: [
        {label: overStep ? "step" : "time", value: (plot, value) => value == null ? "–" : xText(value)},
        ...order.map(index => ({
          label: chart.lines[index].label, stroke: color(chart.lines[index].color), width: chart.stacked ? 0 : 1.75,
          fill: chart.stacked ? color(chart.lines[index].color) : undefined, spanGaps: true,
          points: {show: !chart.stacked && few, size: 5, fill: color(chart.lines[index].color)},
          value: (plot, value, series, at) => at == null ? "–" : (value => value == null ? "–" : yText(value))(chart.data[index + 1][at]),
        })),
      ],
      hooks: {
        setScale: [(plot, key) => {
          if (key !== "x") return;
          const xs = chart.data[0], {min, max} = plot.scales.x, all = min <= xs[0] && max >= xs[xs.length - 1];
          drawn.get(box.dataset.chart)?.plot === plot && (drawn.get(box.dataset.chart).zoom = all ? null : {min, max});
        }],
      },
    };
  };

  const draw = () => {
    const zooms = new Map([...drawn].map(([key, each]) => [key, each.zoom]));
    drawn.forEach(each => each.plot.destroy());
    drawn.clear();
    document.querySelectorAll("[data-chart]").forEach(box => {
      const key = box.dataset.chart, chart = charts[key];
      if (!chart) return;
      box.replaceChildren();
      const data = chart.stacked ? stackedUp(chart.data) : chart.data;
      const plot = new uPlot(options(chart, box), data, box), zoom = zooms.get(key) ?? null;
      drawn.set(key, {plot, box, zoom: null});
      if (zoom) plot.setScale("x", zoom);
    });
  };

  const read = () => { charts = JSON.parse(document.getElementById("charts").textContent); };
  read();
  draw();
  addEventListener("resize", () => drawn.forEach(({plot, box}) => plot.setSize({width: box.clientWidth, height: 190})));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return {drawn, refresh: () => { read(); draw(); }};
})();
