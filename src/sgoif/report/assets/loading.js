// Takes up decisions from a file, by the rules of `sgoif.review.decisions`: a person may have edited it in between.
function labelOf(text) {
  const wanted = text.trim();
  if (/^\d+$/.test(wanted) && Number(wanted) < DOC.classes.length) return Number(wanted);
  const exact = DOC.classes.indexOf(wanted);
  if (exact >= 0) return exact;
  const alike = DOC.classes.flatMap((name, label) => (name.trim().toLowerCase() === wanted.toLowerCase() ? [label] : []));
  return alike.length === 1 ? alike[0] : -1;
}

const agreement = { both: 0, same: 0, people: new Set() }; // of decisions that were loaded with those made here

// The decision of a row; null where it cannot be understood.
function readRow(row, i) {
  const decision = (row.decision ?? "").trim().toLowerCase();
  const [text, at] = [row.note ?? "", (row.decided_at ?? "").trim()];
  if (!decision) return text ? { decision: null, labels: [], note: text, at } : null;
  if (!Object.hasOwn(KINDS, decision)) return null;
  if (decision === "edit") return row.completion?.trim() ? { decision, labels: [], completion: row.completion, note: text, at } : null;
  if (decision !== "relabel" && decision !== "several") return { decision, labels: [], note: text, at };
  const parts = (row.label ?? "").trim() ? row.label.split("|") : decision === "several" ? (row.label_name ?? "").split("|") : [row.label_name ?? ""];
  const labels = [...new Set(parts.map(labelOf))];
  if (labels.includes(-1) || (decision === "relabel" ? labels.length !== 1 : labels.length < 2)) return null;
  const isSame = decision === "relabel" && labels[0] === CARDS.given[i];
  return isSame ? { decision: "keep", labels: [], note: text, at } : { decision, labels, note: text, at };
}

// How far a file agrees with what was decided here before.
function compareWith(i, { decision, labels, completion }, reviewer) {
  const mine = decided.get(i);
  if (!mine?.decision || !decision) return;
  agreement.both++;
  if (reviewer) agreement.people.add(reviewer);
  if (mine.decision === decision && mine.labels.join() === labels.join() && mine.completion === completion) agreement.same++;
}

const AT_ONCE = 400; // rows that are taken up between two frames: the browser keeps each decision by itself

// Newer decisions win; rows of other people, of other cards, and those that cannot be read are counted.
async function load(rows) {
  const before = new Map(); // one step, to be taken back at once
  const counts = { taken: 0, older: 0, others: 0, strangers: 0, unreadable: 0 };
  for (let start = 0; start < rows.length; start += AT_ONCE) {
    if (start) await new Promise((done) => setTimeout(done));
    const changes = readChanges(rows.slice(start, start + AT_ONCE), before, counts);
    if (changes.size) for (const [i, value] of change([...changes])) if (!before.has(i)) before.set(i, value);
  }
  counts.taken = before.size;
  if (before.size) history.push(before);
  return counts;
}

function readChanges(rows, before, counts) {
  const changes = new Map();
  for (const row of rows) {
    const place = PLACE.get(`${SHELF}${row.id}\u0000${(row.given_label ?? "").trim()}`);
    const value = place === undefined ? null : readRow(row, place);
    if (value && !before.has(place)) compareWith(place, value, row.reviewer ?? "");
    if (place === undefined) counts.strangers++;
    else if (!value) counts.unreadable++;
    else if (DOC.reviewer && row.reviewer && row.reviewer !== DOC.reviewer) counts.others++;
    else if (value.at && (changes.get(place) ?? decided.get(place))?.at > value.at) counts.older++;
    else changes.set(place, { ...value, at: value.at || now() });
  }
  return changes;
}

function loadedText({ taken, older, others, strangers, unreadable }) {
  const parts = [`${counted(taken, "decision")} loaded.`];
  if (older) parts.push(`${older} older than yours, left out.`);
  if (others) parts.push(`${others} by other people, left out.`);
  if (strangers) parts.push(`${strangers} about cards that are not on this page.`);
  if (unreadable) parts.push(`${unreadable} could not be understood.`);
  return parts.join(" ");
}
