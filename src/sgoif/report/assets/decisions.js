// Who decided what. Every change is kept by the browser at once, card by card, and can be taken back.
const KINDS = { keep: "kept", relabel: "relabelled", drop: "dropped", unsure: "unsure", several: "several", none: "none of these" };
const WRONG = new Set(["relabel", "drop", "several", "none"]);
const SHELF = `sgoif/${DOC.list}/${DOC.reviewer}/`;
const keyOf = (i) => `${CARDS.id[i]}\u0000${CARDS.given[i]}`;
const PLACE = new Map(CARDS.id.map((_, i) => [keyOf(i), i]));

const decided = new Map(); // card -> { decision, labels, note, at }
const history = []; // what each step changed, to be taken back
const listeners = [];
let isUnsaved = false;
let canKeep = true;

function keep(name, value) {
  try {
    if (value == null) localStorage.removeItem(SHELF + name);
    else localStorage.setItem(SHELF + name, value);
  } catch {
    if (canKeep) say("This browser keeps nothing for this page: download your decisions before you close it.");
    canKeep = false;
  }
}

function restore() {
  try {
    for (let n = 0; n < localStorage.length; n++) {
      const name = localStorage.key(n);
      if (!name.startsWith(SHELF)) continue;
      const place = PLACE.get(name.slice(SHELF.length));
      if (place !== undefined) decided.set(place, JSON.parse(localStorage.getItem(name)));
    }
    isUnsaved = localStorage.getItem(`${SHELF}unsaved`) === "yes";
  } catch {
    canKeep = false;
  }
}

function markUnsaved(yes) {
  if (isUnsaved === yes) return;
  isUnsaved = yes;
  keep("unsaved", yes ? "yes" : null);
}

function change(changes) {
  const before = new Map();
  for (const [i, value] of changes) {
    before.set(i, decided.get(i) ?? null);
    if (value) decided.set(i, value);
    else decided.delete(i);
    keep(keyOf(i), value ? JSON.stringify(value) : null);
  }
  markUnsaved(true);
  for (const listener of listeners) listener([...before.keys()]);
  return before;
}

const now = () => new Date().toISOString().replace(/\.\d+Z$/, "Z");

function decide(cards, decision, labels = []) {
  const at = now();
  const changes = cards.map((i) => {
    const isSame = decision === "relabel" && labels[0] === CARDS.given[i]; // relabelled as what it is
    const answer = isSame ? { decision: "keep", labels: [] } : { decision, labels };
    return [i, { ...answer, note: decided.get(i)?.note ?? "", at }];
  });
  history.push(change(changes));
}

function note(i, text) {
  const known = decided.get(i) ?? { decision: null, labels: [], at: now() };
  const value = { ...known, note: text };
  change([[i, value.decision || text ? value : null]]);
}

function undo() {
  const last = history.pop();
  if (!last) return [];
  change([...last]);
  return [...last.keys()];
}

function decisionRows() {
  const chosen = [...decided].filter(([, value]) => value.decision || value.note).sort(([a], [b]) => a - b);
  return chosen.map(([i, value]) => ({
    id: CARDS.id[i],
    given_label: CARDS.given[i],
    given_name: className(CARDS.given[i]),
    decision: value.decision ?? "unsure",
    label: value.labels.join("|"),
    label_name: value.labels.map(className).join(" | "),
    note: value.note,
    reviewer: DOC.reviewer,
    decided_at: value.at,
    content: CARDS.content[i] ?? "",
    list: DOC.list,
  }));
}

function load(text) {
  const changes = [];
  let strangers = 0;
  for (const row of fromCsv(text)) {
    const place = PLACE.get(`${row.id}\u0000${row.given_label}`);
    const labels = (row.label || "").split("|").filter((part) => /^\d+$/.test(part.trim())).map(Number);
    const isSound = row.decision in KINDS && (labels.length > 0 || !["relabel", "several"].includes(row.decision));
    if (place === undefined || !isSound) strangers++;
    else changes.push([place, { decision: row.decision, labels, note: row.note ?? "", at: row.decided_at || "" }]);
  }
  if (changes.length) history.push(change(changes));
  return { taken: changes.length, strangers };
}

function spoken(i) {
  const value = decided.get(i);
  if (!value?.decision) return "";
  const names = value.labels.map(className).join(" + ");
  return { keep: "✓ keep", relabel: `→ ${names}`, drop: "✕ drop", unsure: "? unsure", several: `+ ${names}`, none: "∅ none" }[value.decision];
}
