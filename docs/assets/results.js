"use strict";
// Shows the tables that docs/gen/results.py puts into pages, with filters by column, result and text.

const NOT_RUN = "not run";

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function select(label, options) {
  const list = element("select", {}, ...options.map(([value, text]) => element("option", {value}, text)));
  return [element("label", {}, label, " ", list), list];
}

function showResults(container, data) {
  const verdicts = [...data.verdicts, {name: NOT_RUN, mark: ""}];
  const verdictOf = cell => (cell ? data.verdicts[cell[0]] : verdicts.at(-1));
  const textOf = cell => (cell && cell.length > 1 ? data.texts[cell[1]] : "");

  const [columnLabel, columnList] = select(data.column, [["", "all"], ...data.columns.map((name, i) => [i, name])]);
  const [verdictLabel, verdictList] = select("result", [
    ["", "any"], ...verdicts.map(({name, mark}) => [name, `${mark} ${name}`.trim()]),
  ]);
  const text = element("input", {type: "search", placeholder: "text", ariaLabel: "text"});
  const count = element("output", {className: "results-count"});
  const scroll = element("div", {className: "results-scroll"});
  const detail = element("p", {className: "results-detail"});
  detail.setAttribute("aria-live", "polite");

  // The columns that are shown: all, or the chosen one.
  const shownColumns = () => (columnList.value === "" ? data.columns.map((_, i) => i) : [Number(columnList.value)]);

  function matches(row, columns) {
    const cells = columns
      .map(i => row.cells[i])
      .filter(cell => verdictList.value === "" || verdictOf(cell).name === verdictList.value);
    const words = text.value.trim().toLowerCase();
    const searched = [row.name, row.group, row.about, ...cells.map(textOf)].join("\n").toLowerCase();
    return cells.length > 0 && searched.includes(words);
  }

  function resultCell(row, i) {
    const cell = row.cells[i], {name, mark} = verdictOf(cell), why = textOf(cell);
    const made = element("td", {title: why || name, className: "results-cell"}, mark);
    const says = `${data.columns[i]}, ${row.name}: ${name}${why ? `: ${why}` : ""}`;
    made.setAttribute("aria-label", says);
    made.addEventListener("click", () => (detail.textContent = says));
    return made;
  }

  function bodyRows(rows, columns) {
    const made = [];
    let group = "";
    for (const row of rows) {
      if (row.group !== group) {
        group = row.group;
        made.push(element("tr", {className: "results-group"}, element("th", {colSpan: columns.length + 2}, group)));
      }
      const head = element("th", {title: row.about}, row.name);
      if (columns.length > 1) {
        made.push(element("tr", {}, head, ...columns.map(i => resultCell(row, i))));
      } else {
        const cell = row.cells[columns[0]];
        const why = element("td", {className: "results-why"}, textOf(cell) || row.about);
        made.push(element("tr", {}, head, resultCell(row, columns[0]), why));
      }
    }
    return made;
  }

  function draw() {
    const columns = shownColumns();
    const rows = data.rows.filter(row => matches(row, columns));
    const heads = columns.map(i => element("th", {className: columns.length > 1 ? "results-turned" : ""}, data.columns[i]));
    const head = element("tr", {}, element("th", {}, data.row), ...heads);
    if (columns.length === 1) head.append(element("th", {}, "why"));
    scroll.replaceChildren(
      element("table", {className: "results-table"}, element("thead", {}, head), element("tbody", {}, ...bodyRows(rows, columns)))
    );
    count.textContent = `${rows.length} of ${data.rows.length} rows`;
    detail.textContent = "Click a result to see why.";
  }

  for (const control of [columnList, verdictList, text]) control.addEventListener("input", draw);
  container.append(element("div", {className: "results-filters"}, columnLabel, verdictLabel, text, count), scroll, detail);
  draw();
}

document.addEventListener("DOMContentLoaded", () => {
  for (const container of document.querySelectorAll(".results")) {
    showResults(container, JSON.parse(container.querySelector("script").textContent));
  }
});
