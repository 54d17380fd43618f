// What an example is: a picture, a text, or a row of a table. Texts and cells are set as text, never as markup.
const ON_CARD = 600; // characters of a text that a card shows; the opened card shows all of them
const BESIDE = 5; // columns in which a row is compared with others
const COLUMNS_ON_CARD = 8;
const HAS_TEXTS = DOC.kinds.includes("text");
const HAS_ROWS = DOC.kinds.includes("row");
const IS_WRITTEN = HAS_TEXTS || HAS_ROWS;

const exampleAt = (number) => (number < 0 ? null : DOC.examples[number]);
const isText = (example) => typeof example?.text === "string";
const isRow = (example) => Array.isArray(example?.order);

// A picture is decoded when it is shown: until then it is only text.
function sourceOf(number) {
  const text = DOC.examples[number];
  if (DOC.mode !== "embed") return text;
  return `data:image/${text.startsWith("iVBOR") ? "png" : "jpeg"};base64,${text}`;
}

function picture(number, id, description) {
  const noun = DOC.kinds.length === 1 ? DOC.kinds[0] : DOC.kinds.length ? "example" : "picture";
  const lost = () => make("span", { class: "missing" }, DOC.mode === "none" ? id : `no ${noun}: ${id}`);
  if (number < 0) return lost();
  const image = make("img", { alt: description, decoding: "async", loading: "lazy", draggable: "false" });
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 96)); // P shows its pixels
  image.addEventListener("error", () => image.replaceWith(lost()));
  image.src = sourceOf(number);
  return image;
}

// Cut between characters that are written with two code units, and at the end of a word where one is near.
function cutText(text, most) {
  if (text.length <= most) return text;
  const part = text.slice(0, most).replace(/[\ud800-\udbff]$/, "");
  const end = part.search(/\s\S*$/);
  return `${end > 0.9 * most ? part.slice(0, end) : part}…`;
}

function written(text, most) {
  return text.trim() ? make("p", { class: "written", dir: "auto" }, cutText(text, most)) : make("p", { class: "written none" }, "(empty text)");
}

function cellOf(value, mark) {
  const text = value == null ? make("span", { class: "none" }, "missing") : make("bdi", { dir: "auto" }, value);
  return make("td", { class: mark ? "unusual" : false }, text, ...(mark ? [" ", make("small", { class: "mark" }, mark)] : []));
}

function cells(example, most) {
  const shown = example.order.slice(0, most);
  const lines = shown.map((c) => make("tr", {}, make("th", { scope: "row", title: DOC.columns[c] }, make("bdi", {}, DOC.columns[c])), cellOf(example.row[c], example.marks[c])));
  const left = example.order.length - shown.length + example.left;
  const rest = left ? make("p", { class: "left" }, `and ${counted(left, "column")} more`) : null;
  return make("div", { class: "cells" }, make("table", {}, make("tbody", {}, ...lines)), rest);
}

// What a card is about, as it is on the card, or whole where it is opened.
function exampleOf(i, isWhole = false) {
  const number = CARDS.example[i];
  const example = exampleAt(number);
  if (isRow(example)) return cells(example, isWhole ? Infinity : COLUMNS_ON_CARD);
  if (!isText(example)) return picture(number, shownId(i), `example ${shownId(i)}`);
  const text = written(example.text, isWhole ? Infinity : ON_CARD);
  if (isWhole && example.left) text.append(make("small", { class: "left" }, ` … ${counted(example.left, "character")} more, not in this file`));
  return text;
}

// The same in a frame, which scrolls where a text is long: then the keyboard must reach it.
function largeExample(i, name = "The example") {
  const reached = IS_WRITTEN ? { tabindex: "0", role: "region", "aria-label": name } : {};
  return make("div", { class: "large picture", ...reached }, exampleOf(i, true));
}

// How high the upper part of a card of a text or row must be for most of them to be seen, in pixels.
function frameHeight(room) {
  const line = 20;
  const perLine = Math.max((room - 40) / 7.3, 10);
  const lines = CARDS.example.map((number, i) => {
    const example = exampleAt(number);
    const mark = CARDS.source[i] === "holdout" ? 1.2 : 0; // stands above the example
    if (isRow(example)) return mark + 1.3 * Math.min(example.order.length, COLUMNS_ON_CARD) + (example.order.length + example.left > COLUMNS_ON_CARD ? 0.7 : -0.4);
    if (!isText(example)) return 1;
    const parts = cutText(example.text, ON_CARD).split("\n");
    return parts.reduce((sum, part) => sum + Math.max(Math.ceil(part.length / perLine), 1), mark + 0.3);
  });
  lines.sort((a, b) => a - b);
  const most = lines[Math.floor(0.95 * (lines.length - 1))] ?? 1;
  return Math.round(Math.min(Math.max(line * most + 28, 76), 340));
}

// What a person may search a card by, without accents and capital letters; made when it is first asked for.
const SEARCHED = [];
function searched(i) {
  if (SEARCHED[i] === undefined) {
    const example = exampleAt(CARDS.example[i]);
    const text = isText(example) ? example.text : isRow(example) ? example.order.map((c) => `${DOC.columns[c]} ${example.row[c] ?? "missing"}`).join("\n") : "";
    SEARCHED[i] = plain(`${DOC.secret ? "" : CARDS.id[i]}\n${text}`);
  }
  return SEARCHED[i];
}

// Ahead of the first search, a few cards at a time.
function prepareSearch(start = 0) {
  const until = performance.now() + 8;
  let i = start;
  while (i < COUNT && performance.now() < until) searched(i++);
  if (i < COUNT) setTimeout(prepareSearch, 20, i);
}
