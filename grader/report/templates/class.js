"use strict";
const table = document.getElementById("class"), body = table.tBodies[0];
const search = document.getElementById("search"), number = document.getElementById("number");
const heads = [...table.tHead.rows[0].cells];
const status = document.getElementById("status");
const words = [...status.options].map(option => option.value).filter(Boolean);
words.sort((a, b) => b.length - a.length);  // "not passed" is found before "passed"
const rows = [...body.rows].map((row, place) => ({
  row, place, status: row.cells[1].textContent.trim(),
  text: [...row.cells].map((cell, i) => i === 1 ? "" : cell.textContent).join(" ").toLowerCase(),
}));
let column = -1, down = false;
function find() {
  // A status that is written out is that status, and no other that ends alike.
  let rest = " " + search.value.toLowerCase().split(/\s+/).filter(Boolean).join(" ") + " ";
  const wanted = words.find(word => rest.includes(" " + word + " "));
  if (wanted) rest = rest.replace(" " + wanted + " ", " ");
  const parts = rest.split(" ").filter(Boolean);
  let found = 0;
  for (const one of rows) {
    one.row.hidden = Boolean(status.value && one.status !== status.value)
      || Boolean(wanted && one.status !== wanted)
      || !parts.every(part => one.text.includes(part) || one.status.startsWith(part));
    found += !one.row.hidden;
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
  const state = new URLSearchParams({search: search.value, status: status.value, sort: column, down: Number(down)});
  history.replaceState(null, "", "#" + state);
}
const state = new URLSearchParams(location.hash.slice(1));
search.value = state.get("search") || "";
status.value = words.includes(state.get("status")) ? state.get("status") : "";
column = Math.min(Number(state.get("sort") || -1), heads.length - 1);
down = state.get("down") === "1";
for (const field of [search, status]) field.addEventListener("input", () => { find(); keep(); });
heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
  down = column === i && !down;
  column = i;
  sort();
  keep();
}));
find();
sort();
