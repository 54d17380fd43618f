// Batches: cards that share an answer on which the model and the neighbours agree, as tiles without captions. A click
// marks an exception; Enter accepts the rest. A batch is no larger than the window, so that all of it is in sight.
const LARGEST_BATCH = 50;
const TILE_GAP = 6;
const IS_TABLE = HAS_ROWS && DOC.kinds.length === 1; // a tile is a line of one table then
const TILES = IS_TABLE ? { least: Infinity, most: Infinity, height: 38 } : IS_WRITTEN ? { least: 250, most: 420, height: HAS_ROWS ? 96 : 84 } : { least: innerWidth < 520 ? 66 : 84, most: 150 };
const CELL = 110; // pixels of a cell of such a line, at least
const MOST_CELLS = 8;
const CAN_BATCH = !DOC.sample && !DOC.blind && !DOC.asked && DOC.examples.length > 0 && CARDS.agrees.some(Boolean);

let batch = { label: -1, cards: [], all: [] }; // those in sight, and those from which they were taken
let tile = 0; // the one that the arrow keys are on
let tileColumns = 1;
let lineColumns = []; // columns of the table that lines show
const exceptions = new Set(); // cards of the batch
const putOff = new Set(); // classes whose batches come last

const isOpenForBatches = (i) => !excepted.has(i) && !decided.get(i)?.decision;
const isBatchable = (i) => isOffered(i) && isOpenForBatches(i);

// Cards for batches by class, the most first.
function batchable() {
  const found = new Map();
  for (const i of shown) {
    if (!isBatchable(i)) continue;
    const label = bestOf(i);
    if (!found.has(label)) found.set(label, []);
    found.get(label).push(i);
  }
  return [...found].sort(([a, ours], [b, theirs]) => putOff.has(a) - putOff.has(b) || theirs.length - ours.length || a - b);
}

// How large tiles are, and how many of them fit below the heading.
function fitTiles(number) {
  const room = find("batches").clientWidth || 1000;
  const top = find("tiles").getBoundingClientRect().top + scrollY;
  const high = Math.max(innerHeight - top - 16, 160);
  const [least, most] = [Math.min(TILES.least, room), Math.min(TILES.most, room)];
  const columnsOf = (size) => Math.max(1, Math.floor((room + TILE_GAP) / (size + TILE_GAP)));
  const rowsOf = (size) => Math.max(1, Math.floor((high + TILE_GAP) / ((TILES.height ?? size) + TILE_GAP)));
  const wanted = Math.min(number, LARGEST_BATCH);
  let size = most;
  while (size > least && columnsOf(size) * rowsOf(size) < wanted) size -= 2;
  size = Math.max(size, least);
  return { size, columns: columnsOf(size), count: Math.min(wanted, columnsOf(size) * rowsOf(size)) };
}

function nextBatch() {
  const [label, cards] = batchable()[0] ?? [-1, []];
  const numbers = new Map();
  for (const i of cards) numbers.set(CARDS.given[i], (numbers.get(CARDS.given[i]) ?? 0) + 1);
  const sizeOf = (i) => numbers.get(CARDS.given[i]); // tiles under the same label stand together
  cards.sort((a, b) => sizeOf(b) - sizeOf(a) || CARDS.given[a] - CARDS.given[b] || a - b);
  batch = { label, cards, all: cards };
  exceptions.clear();
  tile = 0;
  showBatch();
}

// The same cards in a window of another size, as many as fit it.
function refitBatch() {
  batch.cards = batch.all.filter(isOpenForBatches);
  tile = 0;
  showBatch();
}

function batchHeading() {
  const given = [...new Set(batch.cards.map((i) => CARDS.given[i]))];
  const look = ["These look like ", make("bdi", { class: "best" }, className(batch.label))];
  if (given.length === 1) return [...look, ", not ", make("bdi", {}, className(given[0])), "."];
  const counts = given.map((label) => [label, batch.cards.filter((i) => CARDS.given[i] === label).length]).sort((a, b) => b[1] - a[1]);
  const names = counts.slice(0, 3).map(([label, number]) => `${isolated(className(label))} (${number})`);
  const more = counts.length > 3 ? ` and ${counted(counts.length - 3, "other class", "other classes")}` : "";
  return [...look, make("small", {}, ` Now labelled ${names.join(", ")}${more}.`)];
}

// The columns in which the rows of the batch are most unusual, as many as fit.
function chooseLineColumns() {
  const weight = new Map();
  for (const i of batch.cards) (exampleAt(CARDS.example[i])?.order ?? []).forEach((c, n) => weight.set(c, (weight.get(c) ?? 0) + 1 / (n + 1)));
  const number = Math.min(Math.max(Math.floor((find("batches").clientWidth || 1000) / CELL), 2), MOST_CELLS);
  lineColumns = [...weight].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, number).map(([c]) => c);
  find("tile-head").replaceChildren(...lineColumns.map((c) => make("span", { title: DOC.columns[c] }, make("bdi", {}, DOC.columns[c]))));
  find("tile-head").style.gridTemplateColumns = lineGrid();
}

const lineGrid = () => `repeat(${Math.max(lineColumns.length, 1)}, minmax(0, 1fr))`;

function lineOf(example) {
  const cellIn = (c) => {
    const [value, mark] = [example.row[c], example.marks[c]];
    const text = value == null ? make("span", { class: "none" }, "missing") : make("bdi", { dir: "auto" }, value);
    return make("span", { class: mark ? "unusual" : false, title: value ?? "missing" }, make("span", { class: "heard" }, `${DOC.columns[c]} `), text, mark ? make("small", { class: "mark" }, ` ${mark}`) : null);
  };
  const line = make("span", { class: "line" }, ...lineColumns.map(cellIn));
  line.style.gridTemplateColumns = lineGrid();
  return line;
}

function showBatch() {
  const isEmpty = !batch.cards.length;
  find("batch-head").hidden = find("tiles").hidden = isEmpty;
  find("tile-head").hidden = isEmpty || !IS_TABLE;
  find("batches-done").hidden = !isEmpty;
  if (isEmpty) return find("tiles").replaceChildren(), showBatchesDone();
  find("batch-name").replaceChildren(...batchHeading());
  if (IS_TABLE) chooseLineColumns();
  showBatchButtons(); // they take room
  const { size, columns, count } = fitTiles(batch.cards.length);
  batch.cards = batch.cards.slice(0, count);
  for (const i of [...exceptions]) if (!batch.cards.includes(i)) exceptions.delete(i);
  tileColumns = columns;
  find("batch-name").replaceChildren(...batchHeading());
  const tiles = find("tiles");
  tiles.style.gridTemplateColumns = IS_WRITTEN ? `repeat(${columns}, minmax(0, 1fr))` : `repeat(${columns}, ${size}px)`;
  tiles.style.gridAutoRows = `${TILES.height ?? size}px`;
  tiles.replaceChildren(...batch.cards.map((i, n) => tileOf(i, n)));
  showBatchButtons();
  focusTile();
}

function showBatchesDone(isFocused = true) {
  const left = shown.filter((i) => !decided.get(i)?.decision).length;
  const number = countOffered();
  const text = number ? `${counted(number, "card")} can be decided in batches, ${counted(left, "card")} in all.` : left ? `No batch is left. ${counted(left, "card")} left to look at one by one.` : "All cards here are decided.";
  const on = left ? make("button", { type: "button", class: "primary", onclick: () => chooseMode("focus") }, "One at a time ", make("kbd", {}, "F")) : make("button", { type: "button", class: "primary", onclick: () => chooseView("result"), hidden: !DOC.owner }, "Result");
  const next = number ? make("button", { type: "button", onclick: nextBatch }, "Next batch") : "";
  find("batches-done").replaceChildren(make("p", {}, text), on, next);
  if (isFocused && mode === "batches" && !isFiltering()) on.focus({ preventScroll: true });
}

function tileOf(i, n) {
  const element = make("button", { type: "button", class: "tile", "data-card": i, tabindex: n === tile ? "0" : "-1", "aria-pressed": "false" }, IS_WRITTEN ? make("span", { class: "heard" }) : null, tileExample(i));
  element.addEventListener("click", () => ((tile = n), toggleException(i)));
  element.addEventListener("focus", () => (tile = n));
  dressTile(element, i, n);
  return element;
}

function tileExample(i) {
  const example = exampleAt(CARDS.example[i]);
  if (isText(example)) return written(example.text, 220);
  if (isRow(example) && IS_TABLE) return lineOf(example);
  if (isRow(example)) return cells({ ...example, left: 0, order: example.order.slice(0, 3) }, 3);
  return picture(CARDS.example[i], shownId(i), "");
}

function dressTile(element, i, n) {
  const isOut = exceptions.has(i);
  element.classList.toggle("excepted", isOut);
  element.setAttribute("aria-pressed", isOut);
  const said = `${isOut ? "exception" : "accept"}: ${n + 1} of ${batch.cards.length}, labelled ${className(CARDS.given[i])}`;
  if (IS_WRITTEN) element.querySelector(".heard").textContent = `${said}: `; // what is written follows
  else element.setAttribute("aria-label", said);
}

function toggleException(i) {
  if (!exceptions.delete(i)) exceptions.add(i);
  const n = batch.cards.indexOf(i);
  dressTile(find("tiles").children[n], i, n);
  showBatchButtons();
}

function showBatchButtons() {
  const number = batch.cards.length - exceptions.size;
  const inSight = new Set(batch.cards);
  const later = shown.filter((i) => isBatchable(i) && !inSight.has(i)).length;
  const name = isolated(className(batch.label));
  find("accept").replaceChildren(number ? `Accept ${thousands(number)} as ${name} ` : "Leave all out ", make("kbd", {}, "Enter"));
  const hidden = IS_TABLE ? DOC.columns.length - lineColumns.length : 0;
  const told = [later ? `${thousands(later)} more in later batches` : "last batch", ...(hidden > 0 ? [`${counted(hidden, "column")} not shown here`] : [])];
  find("batch-left").textContent = told.join("; ");
}

function acceptBatch() {
  const tiles = [...find("tiles").children];
  const above = find("batch-head").getBoundingClientRect().bottom;
  if (!tiles.every((element) => isSeen(element, Math.min(above, innerHeight / 2)))) {
    find("batches").scrollIntoView({ block: "start" });
    return say("Some tiles were out of sight. Look at them, then press Enter.");
  }
  const cards = batch.cards.filter((i) => !exceptions.has(i) && !decided.get(i)?.decision); // by another tab, perhaps
  for (const i of exceptions) excepted.add(i);
  keepExceptions();
  const label = batch.label;
  if (cards.length) decide(cards, "relabel", [label]);
  else history.push(new Map());
  history[history.length - 1].exceptions = [...exceptions];
  history[history.length - 1].label = label;
  nextBatch();
  say(cards.length ? `${counted(cards.length, "card")}: ${isolated(className(label))}. Z takes it back.` : "All left out of the batches. Z takes it back.");
}

// The batch that was taken back, with its exceptions marked.
function returnToBatch(cards) {
  if (taken?.label === undefined) return nextBatch(), say("Taken back, on a card outside the batches.");
  const returned = cards.filter((i) => isOpenForBatches(i) && bestOf(i) === taken.label);
  batch = { label: taken.label, cards: returned, all: returned };
  exceptions.clear();
  for (const i of taken.exceptions) exceptions.add(i);
  tile = 0;
  if (!batch.cards.length) return nextBatch();
  showBatch();
  say("Taken back.");
}

function putOffBatch() {
  if (batchable().length < 2) return say("There is no other batch.");
  if (batchable().every(([label]) => putOff.has(label) || label === batch.label)) putOff.clear();
  putOff.add(batch.label);
  nextBatch();
}

function focusTile() {
  if (mode !== "batches" || isFiltering() || document.querySelector("dialog[open]") || find("review").hidden) return;
  const tiles = find("tiles").children;
  for (let n = 0; n < tiles.length; n++) tiles[n].tabIndex = n === tile ? 0 : -1;
  tiles[tile]?.focus({ preventScroll: true });
}

function moveTile(key) {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: tileColumns, ArrowUp: -tileColumns, Home: -LARGEST_BATCH, End: LARGEST_BATCH };
  if (!(key in steps) || !batch.cards.length) return false;
  tile = Math.min(Math.max(tile + steps[key], 0), batch.cards.length - 1);
  focusTile();
  return true;
}

// Keys of a batch; whether there was one.
function pressedInBatch(key, isOnButton) {
  if (moveTile(key)) return true;
  if (!batch.cards.length) return false;
  if (key === "Enter" && !isOnButton) acceptBatch();
  else if (key === "x" || (key === " " && !isOnButton)) toggleException(batch.cards[tile]);
  else if (key === "l") putOffBatch();
  else return false;
  return true;
}

find("accept").addEventListener("click", acceptBatch);
find("later").addEventListener("click", putOffBatch);
