// Decisions as CSV, as spreadsheets read and write it. A cell that a spreadsheet would run begins with a quote.
const COLUMNS = ["id", "given_label", "given_name", "decision", "label", "label_name", "note", "reviewer", "decided_at", "content", "list"];
// A spreadsheet that separates by semicolons begins a cell after each of them, whatever quotes there are: see files.py.
const RUNNABLE = `[" ]*[=+\\-@'\uff1d\uff0b\uff0d\uff20]`;
const TO_GUARD = new RegExp(`^(?=[\t\r]|${RUNNABLE})|(?<=[;\t\r\n])(?=${RUNNABLE})`, "g");
const TO_UNGUARD = new RegExp(`^'(?=[\t\r]|${RUNNABLE})|(?<=[;\t\r\n])'(?=${RUNNABLE})`, "g");

function cell(text) {
  const safe = text.replace(TO_GUARD, "'");
  return /[",;\n\r\t]/.test(safe) || safe !== safe.trim() ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function toCsv(rows) {
  const lines = [COLUMNS.join(",")];
  for (const row of rows) lines.push(COLUMNS.map((name) => cell(String(row[name] ?? ""))).join(","));
  return lines.join("\n") + "\n";
}

function fromCsv(text) {
  const body = text.replace(/^\ufeff/, "").replace(/^sep=.\r?\n/, "");
  const first = body.slice(0, (body + "\n").indexOf("\n"));
  const delimiter = [",", ";", "\t"].reduce((a, b) => (first.split(b).length > first.split(a).length ? b : a));
  const rows = [];
  let row = [];
  let value = "";
  let quoted = false;
  for (let i = 0; i < body.length; i++) {
    const c = body[i];
    if (quoted) {
      if (c !== '"') value += c;
      else if (body[i + 1] === '"') value += body[++i];
      else quoted = false;
    } else if (c === '"' && value === "") quoted = true;
    else if (c === delimiter) [row, value] = [[...row, value], ""];
    else if (c === "\n" || c === "\r") {
      if (c === "\r" && body[i + 1] === "\n") i++;
      rows.push([...row, value]);
      [row, value] = [[], ""];
    } else value += c;
  }
  if (value !== "" || row.length) rows.push([...row, value]);
  const names = (rows.shift() ?? []).map((name) => name.trim().toLowerCase());
  const plain = (text) => text.replace(TO_UNGUARD, "");
  return rows
    .filter((cells) => cells.some((text) => text.trim()))
    .map((cells) => Object.fromEntries(names.map((name, i) => [name, plain(cells[i] ?? "")])));
}
