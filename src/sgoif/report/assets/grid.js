// All cards, by (given -> suggested) or in another order. Only those in sight are in the document, so that any number
// of them scrolls.
const HEAD = 46;
const GAP = 10;
const BEYOND = 150; // pixels above and below the window that are drawn too
const grid = find("grid");

let shown = []; // cards in order
let groups = []; // { name, cards, start }
let rows = []; // { y, height, group } or { y, height, start, end }
let columns = 1;
let width = 180;
let frame = 180; // height of what a card is about
let body = 30; // height of the lines below it
let covered = 0; // pixels at the top that the toolbar takes
let current = -1; // place in `shown`
let mode = "cards"; // how they are shown: batches, focus or cards
let isResting = false; // all cards are decided: keys change nothing until one is moved to
const selected = new Set(); // cards
const drawn = new Map(); // card or -1 - group -> element

const pairOf = (i) => (DOC.sample ? "" : DOC.blind ? `${CARDS.given[i]}` : `${CARDS.given[i]}>${bestOf(i)}`);

function pairName(i) {
  if (DOC.sample) return `Labelled ${isolated(className(CARDS.given[i]))}`;
  const given = isolated(className(CARDS.given[i]));
  return DOC.blind || bestOf(i) < 0 ? given : `${given} → ${isolated(className(bestOf(i)))}`;
}

function grouped(cards) {
  const found = new Map();
  for (const i of cards) {
    const key = pairOf(i);
    if (!found.has(key)) found.set(key, { name: pairName(i), key, cards: [], weight: 0 });
    const group = found.get(key);
    group.cards.push(i);
    group.weight += CARDS.p[i] ?? 1;
  }
  return [...found.values()].sort((a, b) => b.weight - a.weight);
}

const SORTS = {
  p: (a, b) => CARDS.p[b] - CARDS.p[a],
  doubt: (a, b) => Math.abs(CARDS.p[a] - 0.5) - Math.abs(CARDS.p[b] - 0.5),
};

// In groups that share an answer, or as one list without a heading.
function arranged(cards) {
  const order = SORTS[find("sort").value];
  return order ? [{ name: "", key: "", cards: [...cards].sort(order) }] : grouped(cards);
}

function show(cards) {
  const kept = current >= 0 ? shown[current] : -1;
  groups = arranged(cards);
  shown = [];
  for (const group of groups) {
    group.start = shown.length;
    shown.push(...group.cards);
  }
  const kinds = new Set(cards);
  for (const i of [...selected]) if (!kinds.has(i)) selected.delete(i);
  current = Math.max(shown.indexOf(kept), shown.length ? 0 : -1);
  find("nothing").hidden = shown.length > 0;
  find("matching").textContent = shown.length < COUNT ? `${counted(shown.length, "card")} of ${thousands(COUNT)}` : "";
  showMode();
}

// Where each row of cards is; they are drawn by `paint`, once the page is scrolled to where it will be.
function layOut() {
  if (mode !== "cards" || find("review").hidden) return;
  const toolbar = document.querySelector(".toolbar");
  covered = getComputedStyle(toolbar).position === "sticky" ? toolbar.offsetHeight : 0;
  const room = grid.clientWidth || 1000;
  const [least, narrow] = IS_WRITTEN ? [290, 1] : [132, room < 520 ? 3 : 4];
  columns = Math.max(narrow, Math.floor((room + GAP) / (least + GAP)));
  width = Math.floor((room - GAP * (columns - 1)) / columns);
  frame = IS_WRITTEN ? frameHeight(width) : width;
  body = groups.length && groups[0].name && !DOC.sample ? 30 : 52; // a group's heading names the classes
  const height = frame + body;
  rows = [];
  let y = 0;
  groups.forEach((group, number) => {
    if (group.name) rows.push({ y, height: HEAD, group: number });
    if (group.name) y += HEAD;
    for (let start = group.start; start < group.start + group.cards.length; start += columns) {
      rows.push({ y, height, start, end: Math.min(start + columns, group.start + group.cards.length) });
      y += height + GAP;
    }
  });
  grid.style.height = `${y}px`;
  for (const element of drawn.values()) element.remove();
  drawn.clear();
}

function rowAt(y) {
  let [low, high] = [0, rows.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle].y <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

function paint() {
  if (!rows.length) return;
  const top = -grid.getBoundingClientRect().top;
  const wanted = new Map(); // in the order in which they are seen
  for (let r = rowAt(top - BEYOND); r < rows.length && rows[r].y < top + innerHeight + BEYOND; r++) {
    const row = rows[r];
    if (row.group !== undefined) {
      wanted.set(-1 - row.group, () => placed(headOf(groups[row.group]), row.y));
      continue;
    }
    for (let n = row.start; n < row.end; n++) {
      wanted.set(shown[n], () => placed(cardOf(shown[n], n), row.y, (n - row.start) * (width + GAP)));
    }
  }
  for (const [key, element] of drawn) {
    if (wanted.has(key)) continue;
    element.remove();
    drawn.delete(key);
  }
  let after = null; // the document's order is the order to the eye, for those who hear it
  for (const [key, made] of [...wanted].reverse()) {
    if (!drawn.has(key)) {
      drawn.set(key, made());
      grid.insertBefore(drawn.get(key), after);
    }
    after = drawn.get(key);
  }
}

function placed(element, y, x = null) {
  element.style.top = `${y}px`;
  if (x !== null) Object.assign(element.style, { left: `${x}px`, width: `${width}px`, height: `${frame + body}px` });
  return element;
}

function headOf(group) {
  const done = group.cards.filter((i) => decided.get(i)?.decision).length;
  const select = make("button", { type: "button", onclick: () => selectAll(group) }, "Select undecided");
  const said = `${counted(group.cards.length, "card")}${done ? `, ${done} decided` : ""}`;
  if (DOC.sample) return make("div", { class: "group" }, make("h3", {}, "Is each label right?"), make("span", {}, said));
  return make("div", { class: "group" }, make("h3", { title: group.name }, group.name), make("span", {}, said), select);
}

function cardOf(i, n) {
  const [given, best, id] = [className(CARDS.given[i]), className(bestOf(i)), shownId(i)];
  const names = make("div", { class: "names", title: pairName(i), hidden: body < 40 }, DOC.sample ? "labelled " : "", make("bdi", {}, given));
  if (best && !DOC.blind) names.append(" → ", make("bdi", { class: "best" }, best));
  const isSure = CARDS.p[i] != null && !DOC.blind;
  const sure = make("div", { class: "sure" }, isSure ? make("span", { title: "probability that the label is wrong" }, percent(CARDS.p[i])) : "", make("span", { class: "id", title: id }, id));
  const pick = make("span", { class: "pick", "aria-hidden": "true", hidden: DOC.sample });
  const box = make("div", { class: "picture" }, exampleOf(i), pick);
  if (IS_WRITTEN) box.style.height = `${frame}px`;
  if (CARDS.source[i] === "holdout" && !DOC.secret) box.append(make("span", { class: "held" }, "held out"));
  const card = make("article", { class: "card", role: "button", "data-card": i, "data-place": n + 1 }, box, make("div", { class: "body" }, names, sure), make("span", { class: "heard" }));
  pick.addEventListener("click", (event) => (event.stopPropagation(), goTo(n), toggle(i)));
  card.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey) return goTo(n), toggle(i);
    if (event.shiftKey) return extendTo(n);
    goTo(n);
    openFocus();
  });
  dress(card, i);
  return card;
}

// What may change of a card while it is in sight.
function dress(card, i) {
  const [text, isPicked] = [spoken(i), selected.has(i)];
  card.classList.toggle("decided", text !== "");
  card.classList.toggle("selected", isPicked);
  card.classList.toggle("current", shown[current] === i);
  card.tabIndex = shown[current] === i ? 0 : -1;
  const sure = CARDS.p[i] == null || DOC.blind ? "" : `, ${percent(CARDS.p[i])} wrong`;
  const place = `${card.dataset.place} of ${shown.length}`;
  card.querySelector(".heard").textContent = `${pairName(i)}${sure}${text ? ", decided" : ""}${isPicked ? ", selected" : ""}, ${place}`;
  card.querySelector(".pick").textContent = isPicked ? "✓" : "";
  card.querySelector(".badge")?.remove();
  const mark = `${text}${decided.get(i)?.note ? " ✎" : ""}`.trim();
  card.dataset.decision = decided.get(i)?.decision ?? "";
  if (mark) card.querySelector(".picture").append(make("span", { class: "badge" }, mark));
}

function redress(cards) {
  for (const i of cards) if (drawn.has(i)) dress(drawn.get(i), i);
  groups.forEach((group, number) => {
    const head = drawn.get(-1 - number);
    if (!head || !cards.some((i) => pairOf(i) === group.key)) return;
    const fresh = headOf(group);
    fresh.style.top = head.style.top;
    head.replaceWith(fresh);
    drawn.set(-1 - number, fresh);
  });
}

function goTo(n, focus = true) {
  if (!shown.length) return;
  const before = shown[current];
  current = Math.min(Math.max(n, 0), shown.length - 1);
  if (mode === "focus") return (isResting = false), showFocus();
  if (mode !== "cards" || find("review").hidden) return;
  const row = rows.find((item) => item.start !== undefined && item.start <= current && current < item.end);
  isResting = false;
  const top = grid.getBoundingClientRect().top + row.y;
  const bar = covered + 12;
  const under = top + row.height - (innerHeight - find("actions").offsetHeight - 12);
  if (top < bar) scrollBy(0, top - bar - (groups.some((group) => group.start === row.start) ? HEAD : 0));
  else if (under > 0) scrollBy(0, under);
  paint();
  redress([before, shown[current]].filter((i) => i !== undefined));
  if (focus) focusCard();
  showActions();
}

// Whoever sets a filter goes on doing so.
const isFiltering = () => Boolean(document.activeElement?.closest(".filters"));

function focusCard() {
  if (mode === "cards" && !isFiltering() && !document.querySelector("dialog[open]")) drawn.get(shown[current])?.focus({ preventScroll: true });
}

// Whether most of an element can be seen; nothing is decided about a card that cannot.
function isSeen(element, above = covered) {
  const box = element?.getBoundingClientRect();
  if (!box?.height) return false;
  const bottom = innerHeight - (find("actions").hidden ? 0 : find("actions").offsetHeight);
  return Math.min(box.bottom, bottom) - Math.max(box.top, above) >= 0.5 * Math.min(box.height, bottom - above);
}

const isInSight = (i) => isSeen(drawn.get(i));

// One row up or down, in the same column where the row is long enough.
function goRow(step) {
  const lines = rows.filter((row) => row.start !== undefined);
  const here = lines.findIndex((row) => row.start <= current && current < row.end);
  const next = lines[here + step];
  return next ? Math.min(next.start + current - lines[here].start, next.end - 1) : current;
}

function toggle(i) {
  if (DOC.sample) return; // each card is looked at by itself
  if (!selected.delete(i)) selected.add(i);
  redress([i]);
  showActions();
}

function extendTo(n) {
  if (DOC.sample) return goTo(n);
  const [low, high] = [Math.min(n, current), Math.max(n, current)];
  for (let k = low; k <= high; k++) selected.add(shown[k]);
  goTo(n);
  redress(shown.slice(low, high + 1));
  showActions();
}

// Those that nobody has decided; a decision is changed only where it is selected by itself.
function selectAll(group) {
  const open = group.cards.filter((i) => !decided.get(i)?.decision);
  const all = open.every((i) => selected.has(i));
  for (const i of open) all ? selected.delete(i) : selected.add(i);
  if (!open.length) say("All cards of this group are decided.");
  redress(group.cards);
  showActions();
  focusCard();
}

function clearSelection() {
  const before = [...selected];
  selected.clear();
  redress(before);
  showActions();
}
