// Who decided what. Every change is kept by the browser at once, card by card, and can be taken back.
const KINDS = DOC.sequences
  ? DOC.sample
    ? { keep: "right", drop: "wrong", edit: "corrected", unsure: "unsure" }
    : { keep: "kept", drop: "dropped", edit: "edited", unsure: "unsure" }
  : { keep: "kept", relabel: "relabelled", drop: "dropped", unsure: "unsure", several: "several", none: "none of these" };
const WRONG = new Set(["relabel", "drop", "several", "none"]);
const SHELF = `sgoif/${DOC.list}/${DOC.reviewer}/`;
const CHANGED = `${SHELF}\u0000changed`; // times, by which one knows what was not downloaded yet
const DOWNLOADED = `${SHELF}\u0000downloaded`;
const keyOf = (i) => `${SHELF}${CARDS.id[i]}\u0000${CARDS.given[i]}`;
const PLACE = new Map(CARDS.id.map((_, i) => [keyOf(i), i]));

const EXCEPTED = `${SHELF}\u0000excepted`; // cards that were left out of a batch, to be looked at one by one

const decided = new Map(); // card -> { decision, labels, note, at }, and the completion of an edited sequence
const excepted = new Set();
const history = []; // what each step changed, to be taken back
const listeners = [];
let isUnsaved = false;
let canKeep = true;

const now = () => new Date().toISOString().replace(/\.\d+Z$/, "Z");

function keep(name, value) {
  try {
    if (value != null) localStorage.setItem(name, value);
    else localStorage.removeItem(name);
  } catch {
    canKeep = false;
    find("trouble").hidden = false;
    try {
      localStorage.removeItem(name); // better none than an older one
    } catch {
      // a browser that keeps nothing at all
    }
  }
}

// A record as this page writes it; null for anything else.
function sound(text) {
  try {
    const { decision, labels, note, at, completion } = JSON.parse(text);
    const isKnown = decision === null || Object.hasOwn(KINDS, decision);
    const areClasses = Array.isArray(labels) && labels.every((label) => Number.isInteger(label) && label in DOC.classes);
    const isWhole = typeof completion === (decision === "edit" ? "string" : "undefined");
    if (isKnown && areClasses && isWhole && typeof note === "string") return { decision, labels, note, at: String(at ?? ""), completion };
  } catch {
    // not JSON
  }
  return null;
}

function restore() {
  let lost = 0;
  try {
    for (const [key, place] of PLACE) {
      const text = localStorage.getItem(key);
      if (text === null) continue;
      const value = sound(text);
      if (value) decided.set(place, value);
      else lost++;
    }
    for (const key of JSON.parse(localStorage.getItem(EXCEPTED) ?? "[]")) if (PLACE.has(key)) excepted.add(PLACE.get(key));
    isUnsaved = Number(localStorage.getItem(CHANGED)) > Number(localStorage.getItem(DOWNLOADED));
  } catch {
    canKeep = false;
    find("trouble").hidden = false;
  }
  if (lost) say(`${counted(lost, "decision")} kept by this browser could not be read, and must be made again.`);
}

// Another tab with the same page: what is decided there is decided here.
function changedElsewhere(event) {
  const place = PLACE.get(event.key);
  if (place === undefined) return;
  const value = event.newValue === null ? null : sound(event.newValue);
  if (value) decided.set(place, value);
  else decided.delete(place);
  isUnsaved = true;
  for (const listener of listeners) listener([place]);
}

function keepExceptions() {
  keep(EXCEPTED, excepted.size ? JSON.stringify([...excepted].map(keyOf)) : null);
}

function markDownloaded() {
  isUnsaved = false;
  keep(DOWNLOADED, String(Date.now()));
}

function change(changes) {
  const before = new Map();
  for (const [i, value] of changes) {
    before.set(i, decided.get(i) ?? null);
    if (value) decided.set(i, value);
    else decided.delete(i);
    keep(keyOf(i), value ? JSON.stringify(value) : null);
  }
  isUnsaved = true;
  keep(CHANGED, String(Date.now()));
  for (const listener of listeners) listener([...before.keys()]);
  return before;
}

function decide(cards, decision, labels = []) {
  decideEach(cards.map((i) => [i, decision, labels]));
}

// One step, with a decision of its own about each card.
function decideEach(answers) {
  const at = now();
  const changes = answers.map(([i, decision, labels = [], completion = undefined]) => {
    const isSame = decision === "relabel" && labels[0] === CARDS.given[i]; // relabelled as what it is
    const answer = isSame ? { decision: "keep", labels: [] } : { decision, labels, completion };
    return [i, { ...answer, note: decided.get(i)?.note ?? "", at }];
  });
  const step = change(changes);
  history.push(step);
  return step;
}

function note(i, text) {
  const known = decided.get(i) ?? { decision: null, labels: [], at: now() };
  change([[i, known.decision || text ? { ...known, note: text } : null]]);
}

let taken = null; // the step that was taken back last

// Takes a decision back; a note that was written since stays.
function undo() {
  const last = history.pop();
  taken = last ?? null;
  if (!last) return [];
  const changes = [...last].map(([i, value]) => {
    const text = decided.get(i)?.note ?? "";
    const old = value ?? { decision: null, labels: [], at: now() };
    return [i, old.decision || text ? { ...old, note: text } : null];
  });
  for (const i of last.exceptions ?? []) excepted.delete(i);
  if (last.exceptions) keepExceptions();
  change(changes);
  return [...last.keys(), ...(last.exceptions ?? [])];
}

function decisionRows() {
  const chosen = [...decided].filter(([, value]) => value.decision || value.note).sort(([a], [b]) => a - b);
  return chosen.map(([i, value]) => ({
    id: CARDS.id[i],
    given_label: CARDS.given[i],
    given_name: className(CARDS.given[i]),
    decision: value.decision ?? "", // a note alone decides nothing
    label: value.labels.join("|"),
    label_name: value.labels.map(className).join(" | "),
    note: value.note,
    reviewer: DOC.reviewer,
    decided_at: value.at,
    content: CARDS.content[i] ?? "",
    list: DOC.list,
  }));
}

function spoken(i) {
  const value = decided.get(i);
  if (!value?.decision) return "";
  const names = value.labels.map((label) => isolated(className(label))).join(" + ");
  if (DOC.sample) return { keep: "✓ right", relabel: `✕ ${names}`, none: "✕ wrong", unsure: "? cannot tell" }[value.decision] ?? "✕ wrong";
  return { keep: "✓ keep", relabel: `→ ${names}`, drop: "✕ drop", unsure: "? unsure", several: `+ ${names}`, none: "∅ none" }[value.decision];
}
