// The page of sequences: order and filters, the current card, decisions by key and button, files.
const list = find("list");
const cardElements = NUMBERS.map((i) => make("article", { class: "sequence", tabindex: "-1", "aria-label": `Sequence ${shownId(i)}`, "data-card": i }));
const filled = new Set();
const SPOKEN = DOC.sample
  ? { keep: "✓ right", drop: "✕ wrong", edit: "✎ wrong, corrected", unsure: "? cannot tell" }
  : { keep: "✓ keep", drop: "✕ drop", edit: "✎ edit", unsure: "? unsure" };
const DECISIONS = DOC.sample ? "verdicts.jsonl" : "decisions.jsonl";
let shown = [];
let current = -1; // a card

// A card is drawn when it comes near: 500 of them with their tokens take a while.
function fill(i) {
  if (filled.has(i)) return;
  filled.add(i);
  cardElements[i].replaceChildren(...contentOf(i));
  cardElements[i].classList.add("filled");
  dress(i);
}

const near = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && fill(Number(entry.target.dataset.card))), { rootMargin: "1200px" });

// What a decision changes of a card.
function dress(i) {
  const [element, value] = [cardElements[i], decided.get(i)];
  if (value?.decision) element.dataset.decision = value.decision;
  else delete element.dataset.decision;
  if (!filled.has(i)) return;
  const badge = element.querySelector(".badge-text");
  badge.hidden = !value?.decision;
  badge.textContent = value?.decision ? SPOKEN[value.decision] : "";
  if (value?.decision) badge.dataset.decision = value.decision;
  for (const button of element.querySelectorAll("[data-kind]")) button.setAttribute("aria-pressed", button.dataset.kind === value?.decision);
  const edited = element.querySelector(".edited");
  edited.hidden = value?.decision !== "edit";
  edited.querySelector(".written").textContent = value?.completion ?? "";
  const text = element.querySelector(".note-text");
  if (document.activeElement !== text) text.value = value?.note ?? "";
}

function choose(i) {
  if (current >= 0) cardElements[current].classList.remove("current");
  current = i;
  if (i >= 0) cardElements[i].classList.add("current");
}

function goTo(i) {
  if (i === undefined || i < 0) return;
  fill(i);
  choose(i);
  cardElements[i].focus({ preventScroll: true });
  const [box, top] = [cardElements[i].getBoundingClientRect(), find("review").querySelector(".toolbar").getBoundingClientRect().bottom];
  const isWhole = box.top >= top && box.bottom <= innerHeight;
  if (!isWhole) cardElements[i].scrollIntoView({ block: "start" });
}

const step = (by) => goTo(shown[Math.min(Math.max(shown.indexOf(current) + by, 0), shown.length - 1)]);

function isInSight(i) {
  const box = cardElements[i].getBoundingClientRect();
  return box.bottom > 80 && box.top < innerHeight - 40;
}

const isOpen = (i) => !decided.get(i)?.decision;

function advance() {
  const place = shown.indexOf(current);
  const next = [...shown.slice(place + 1), ...shown.slice(0, place)].find(isOpen);
  if (next === undefined) return say("All sequences here are decided.");
  goTo(next);
}

function mayDecide() {
  if (current < 0 || !shown.includes(current)) return false;
  if (isInSight(current)) return true;
  goTo(current);
  say("This sequence was out of sight. Look at it, then decide.");
  return false;
}

function act(kind, completion) {
  if (!mayDecide()) return;
  closeEditor(current);
  decideEach([[current, kind, [], completion]]);
  advance();
}

function takeBack() {
  const cards = undo();
  if (!cards.length) return say("Nothing to take back.");
  if (shown.includes(cards[0])) goTo(cards[0]);
  else say("Taken back, on a sequence that the filters hide.");
}

function closeEditor(i) {
  cardElements[i].querySelector(".editor")?.replaceChildren();
}

function openEditor(i) {
  if (!mayDecide()) return;
  const why = whyNoEdit(i);
  if (why) return say(`${why}.`);
  const text = make("textarea", { class: "new-completion", dir: "auto", rows: "4" });
  text.value = decided.get(i)?.completion ?? CARDS.completion[i];
  const cancel = () => (closeEditor(i), cardElements[i].focus({ preventScroll: true }));
  const save = () => saveEdit(i, text.value);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") event.preventDefault(), cancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.preventDefault(), save();
  });
  const buttons = make("div", { class: "bar-row" }, make("button", { type: "button", class: "primary", onclick: save }, "Save ", make("kbd", {}, "Ctrl Enter")), make("button", { type: "button", onclick: cancel }, "Cancel ", make("kbd", {}, "Esc")));
  cardElements[i].querySelector(".editor").replaceChildren(make("label", {}, "Corrected completion", text), buttons);
  text.focus();
}

function saveEdit(i, text) {
  choose(i);
  if (!text.trim()) return say("The completion is empty. Write one, or drop the sequence.");
  if (text === CARDS.completion[i]) return say("The completion is as it was. K keeps it.");
  act("edit", text);
}

const SEARCHED = [];
const searched = (i) => (SEARCHED[i] ??= plain(`${CARDS.id[i]}\n${CARDS.prompt[i] ?? ""}\n${CARDS.completion[i] ?? ""}`));

function wantedCards() {
  const [group, state, words] = [find("filter-group").value, find("filter-state").value, plain(find("filter-id").value)];
  const isState = { all: () => true, open: isOpen, done: (i) => !isOpen(i), unsure: (i) => decided.get(i)?.decision === "unsure" }[state];
  const found = NUMBERS.filter((i) => (!group || CARDS.worst_group[i] === DOC.groups[group - 1]) && isState(i) && (!words || searched(i).includes(words)));
  const key = CARDS[find("sort").value];
  return find("sort").value === DOC.by ? found : found.sort((a, b) => (key[b] ?? -Infinity) - (key[a] ?? -Infinity) || a - b);
}

function show() {
  shown = wantedCards();
  shown.slice(0, 4).forEach(fill); // at once: the observer sees them only after they are drawn
  list.replaceChildren(...shown.map((i) => cardElements[i]));
  find("nothing").hidden = shown.length > 0;
  find("matching").textContent = shown.length < COUNT ? `(${thousands(shown.length)} of ${thousands(COUNT)})` : "";
  if (!shown.includes(current)) choose(shown.find(isOpen) ?? shown[0] ?? -1);
}

function showProgress() {
  const counts = {};
  for (const { decision } of decided.values()) if (decision) counts[decision] = (counts[decision] ?? 0) + 1;
  const parts = Object.entries(KINDS).flatMap(([kind, name]) => (counts[kind] ? [`${thousands(counts[kind])} ${name}`] : []));
  const number = Object.values(counts).reduce((sum, value) => sum + value, 0);
  find("progress").textContent = `Reviewed ${thousands(number)} of ${thousands(COUNT)}${parts.length ? `: ${parts.join(", ")}` : ""}.`;
  const kept = canKeep ? "Kept in this browser" : "Not kept by this browser";
  find("saved").textContent = decided.size ? `${kept}, ${isUnsaved ? "not downloaded" : "downloaded"}` : "";
}

function sequenceRows() {
  const chosen = [...decided].filter(([, value]) => value.decision || value.note).sort(([a], [b]) => a - b);
  return chosen.map(([i, { decision, completion, note, at }]) => ({ id: CARDS.id[i], decision, ...(decision === "edit" ? { completion } : {}), note, reviewer: DOC.reviewer, decided_at: at, content: CARDS.content[i], list: DOC.list }));
}

function download() {
  const rows = sequenceRows();
  if (!rows.length) return say("Nothing is decided yet.");
  saveFile(DECISIONS, "application/x-ndjson", ...rows.map((row) => `${JSON.stringify(row)}\n`));
  markDownloaded();
  showProgress();
}

// Rows of a JSONL file; lines that are no JSON objects are counted with those that cannot be understood.
function fromJsonLines(text) {
  return text.replace(/^\ufeff/, "").split("\n").filter((line) => line.trim()).map((line) => {
    try {
      const row = JSON.parse(line);
      const text = (name) => String(row[name] ?? ""); // a person may have edited the file
      return { id: text("id"), given_label: "-1", decision: text("decision"), completion: text("completion"), note: text("note"), reviewer: text("reviewer"), decided_at: text("decided_at") };
    } catch {
      return null;
    }
  });
}

async function loadFile(event) {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  const rows = fromJsonLines(await file.text());
  const known = rows.filter((row) => row && row.decision + row.note !== ""); // what nobody decided on is no decision
  const counts = await load(known);
  say(loadedText({ ...counts, unreadable: counts.unreadable + rows.filter((row) => row === null).length }));
}

const KEYS = [
  ["← →", "go to the sequence before or after"],
  ["K", DOC.sample ? "right" : "keep: the sequence is fine"],
  ["D", DOC.sample ? "wrong" : "drop from the training"],
  ["E", `${DOC.sample ? "wrong" : "edit"}: correct the completion; Ctrl and Enter save, Esc leaves it`],
  ["U", DOC.sample ? "cannot tell" : "unsure"],
  ["T", "write a note"],
  ["Z", "undo"],
];

let lettersDecide = true;

function openKeys() {
  const lines = KEYS.flatMap(([keys, text]) => [make("dt", {}, make("kbd", {}, keys)), make("dd", {}, text)]);
  const letters = make("input", { type: "checkbox", checked: lettersDecide });
  letters.addEventListener("change", () => (lettersDecide = letters.checked));
  const choice = make("label", {}, letters, " Letters decide (switch off where dictation or a screen reader types them)");
  const close = make("button", { type: "button", class: "primary", onclick: () => find("keys").close() }, "Close");
  find("keys").replaceChildren(make("div", { class: "keys" }, make("h2", {}, "Keys"), make("dl", {}, ...lines), make("p", {}, choice), close));
  find("keys").showModal();
}

const DECIDING = { k: () => act("keep"), d: () => act("drop"), e: () => openEditor(current), u: () => act("unsure"), z: takeBack, t: () => current >= 0 && mayDecide() && cardElements[current].querySelector(".note-text").focus() };

function pressed(event) {
  if (document.querySelector("dialog[open]") || event.altKey) return;
  const key = letterOf(event);
  if (event.target.matches("input, textarea, select")) {
    if (key === "Escape" && event.target.matches(".note-text")) cardElements[current].focus({ preventScroll: true });
    return;
  }
  if (event.ctrlKey || event.metaKey) {
    if (key === "z" && !event.shiftKey) event.preventDefault(), takeBack();
  } else if (key === "ArrowRight" || key === "ArrowLeft") event.preventDefault(), step(key === "ArrowRight" ? 1 : -1);
  else if (key === "?") event.preventDefault(), openKeys();
  else if (Object.hasOwn(DECIDING, key) && lettersDecide) {
    event.preventDefault();
    if (!event.repeat) DECIDING[key](); // a key that is held down decides once
  }
}

function start() {
  startColours();
  restore();
  const sort = find("sort");
  if (![...sort.options].some((option) => option.value === DOC.by)) sort.prepend(make("option", { value: DOC.by }, `largest ${DOC.by} first`));
  sort.value = DOC.by;
  find("sort-label").hidden = Boolean(DOC.sample);
  find("filter-group").append(make("option", { value: "" }, "any group"), ...DOC.groups.map((group, n) => make("option", { value: n + 1 }, group)));
  find("group-label").hidden = DOC.groups.length < 2;
  listeners.push((cards) => (cards.forEach(dress), showProgress()));
  addEventListener("storage", changedElsewhere);
  for (const name of ["sort", "filter-group", "filter-state", "filter-id"]) find(name).addEventListener("input", show);
  find("download").addEventListener("click", download);
  find("download-too").addEventListener("click", download);
  find("load").addEventListener("change", loadFile);
  find("choose").addEventListener("click", () => find("load").click());
  find("help").addEventListener("click", openKeys);
  find("copy").addEventListener("click", copyCommand);
  const chooseClicked = (event) => {
    const card = event.target.closest("[data-card]");
    if (card) choose(Number(card.dataset.card));
  };
  list.addEventListener("click", chooseClicked, { capture: true }); // before a button of it decides and goes on
  document.addEventListener("keydown", pressed);
  addEventListener("beforeunload", (event) => isUnsaved && decided.size && event.preventDefault());
  const run = shellWord(DOC.run ?? "RUN");
  find("command").textContent = DOC.sample ? `sgoif verify ${run} --verdicts ${DECISIONS}` : `sgoif apply ${run} ${DECISIONS} --out manifest.parquet`;
  show();
  NUMBERS.forEach((i) => (dress(i), near.observe(cardElements[i])));
  showProgress();
}

start();
window.sgoif = { document: DOC, decided, sequenceRows };
