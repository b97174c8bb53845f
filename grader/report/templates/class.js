"use strict";
const table = document.getElementById("class"), body = table.tBodies[0];
const search = document.getElementById("search"), number = document.getElementById("number");
const heads = [...table.tHead.rows[0].cells];
const rows = [...body.rows].map((row, place) => ({row, place, text: row.textContent.toLowerCase()}));
let column = -1, down = false;
function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const {row, text} of rows) {
    row.hidden = !words.every(word => text.includes(word));
    found += !row.hidden;
  }
  number.textContent = found + " of " + rows.length;
}
function value(row) {
  const cell = row.cells[column];
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim().toLowerCase();
}
function compare(a, b) {
  const x = value(a.row), y = value(b.row);
  return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1) || a.place - b.place;
}
function sort() {
  if (column >= 0) body.append(...[...rows].sort(compare).map(one => one.row));
  heads.forEach((head, i) => i === column
    ? head.setAttribute("aria-sort", down ? "descending" : "ascending")
    : head.removeAttribute("aria-sort"));
}
function keep() {
  const state = new URLSearchParams({search: search.value, sort: column, down: Number(down)});
  history.replaceState(null, "", "#" + state);
}
const state = new URLSearchParams(location.hash.slice(1));
search.value = state.get("search") || "";
column = Math.min(Number(state.get("sort") || -1), heads.length - 1);
down = state.get("down") === "1";
search.addEventListener("input", () => { find(); keep(); });
heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
  down = column === i && !down;
  column = i;
  sort();
  keep();
}));
find();
sort();
