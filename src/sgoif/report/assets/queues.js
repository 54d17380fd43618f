// Queues besides the labels: copies under two labels, side by side, and outliers. One entry at a time; decisions are
// about examples, as everywhere, and go into the same file.
const QUEUES = ["labels", "duplicates", "outliers"];
const entriesOf = (name) => DOC.queues[name]?.entries ?? [];
const hasQueue = (name) => name === "labels" || entriesOf(name).length > 0;
const placeIn = { duplicates: 0, outliers: 0 };
let queue = "labels";

// The label from now on; null where the example goes.
function labelAfter(i) {
  const value = decided.get(i);
  if (GOING.has(value?.decision)) return null;
  return value?.decision === "relabel" ? value.labels[0] : CARDS.given[i];
}

// Both are decided, one goes, or both have one label now; `sgoif.report.queues` agrees.
function isSettled(entry) {
  const labels = entry.map(labelAfter);
  return entry.every((i) => decided.get(i)?.decision) || (entry.length > 1 && (labels.includes(null) || labels[0] === labels[1]));
}

const nameOf = (i) => isolated(className(CARDS.given[i]));

// What may be decided about an entry, by key: a text, a title, and what becomes of each example.
function answersTo(entry) {
  const same = (decision) => entry.map((i) => [i, decision]);
  const unsure = ["u", "Unsure", "Cannot be told", same("unsure")];
  if (entry.length === 1) return [["k", `Keep as ${nameOf(entry[0])}`, "The given label is right", same("keep")], ["d", "Drop", "Leave it out of the training", same("drop")], unsure];
  const [left, right] = entry;
  const both = (kept, changed) => [[kept, "keep"], [changed, "relabel", [CARDS.given[kept]]]];
  return [
    ["1", `Both are ${nameOf(left)}`, "The label of the left one is right for both", both(left, right)],
    ["2", `Both are ${nameOf(right)}`, "The label of the right one is right for both", both(right, left)],
    ["k", "Keep both", "Both labels are right", same("keep")],
    ["l", "Drop left", "Keep the right one as it is", [[left, "drop"], [right, "keep"]]],
    ["r", "Drop right", "Keep the left one as it is", [[left, "keep"], [right, "drop"]]],
    ["d", "Drop both", "Leave both out of the training", same("drop")],
    unsure,
  ];
}

function answerEntry(answers) {
  const isOther = ([i, decision, labels = []]) => decided.get(i)?.decision && (decided.get(i).decision !== decision || decided.get(i).labels.join() !== labels.join());
  const number = answers.filter(isOther).length;
  const finish = () => {
    Object.assign(decideEach(answers), { queue, entry: placeIn[queue] });
    advanceQueue();
  };
  if (!number) return finish();
  ask(`${counted(number, "example is", "examples are")} decided already`, [["Change", finish, "primary"], ["Cancel", () => {}]]);
}

function advanceQueue() {
  const entries = entriesOf(queue);
  const isOpen = (entry) => !isSettled(entry);
  let next = entries.findIndex((entry, n) => n > placeIn[queue] && isOpen(entry));
  if (next < 0) next = entries.findIndex(isOpen);
  if (next < 0) say(`All ${queue} are decided.`);
  else placeIn[queue] = next;
  showQueue();
}

function moveInQueue(step) {
  placeIn[queue] = Math.min(Math.max(placeIn[queue] + step, 0), entriesOf(queue).length - 1);
  showQueue();
}

function entryFigure(i, n, of) {
  const side = of > 1 ? (n ? "Right: labelled " : "Left: labelled ") : "Labelled ";
  const text = spoken(i);
  return make(
    "figure",
    { class: "entry" },
    largeExample(i, of > 1 ? (n ? "The right example" : "The left example") : undefined),
    make("figcaption", {}, make("strong", {}, side, make("bdi", {}, className(CARDS.given[i]))), CARDS.source[i] === "holdout" ? " (held out)" : "", make("span", { class: "ident" }, shownId(i))),
    text ? make("strong", { class: "badge-text", "data-decision": decided.get(i).decision }, `Decided: ${text}`) : null,
  );
}

function queueHeading(entry) {
  if (entry.length === 1) return `Is this ${nameOf(entry[0])}, or does it belong to no class?`;
  const [one, many] = DOC.kinds.length === 1 ? [DOC.kinds[0], `${DOC.kinds[0]}s`] : ["example", "examples"];
  const alike = DOC.queues.duplicates.same[placeIn.duplicates] ? `The same ${one}` : `Two ${many} that are nearly the same`;
  return `${alike}, labelled ${nameOf(entry[0])} and ${nameOf(entry[1])}.`;
}

function showQueue() {
  const entries = entriesOf(queue);
  const entry = entries[placeIn[queue]];
  const button = (key, text, run, title) => make("button", { type: "button", title, onclick: run }, make("kbd", {}, key.toUpperCase()), make("bdi", { class: "name" }, text));
  const step = (by, name, sign) => make("button", { type: "button", "aria-label": name, onclick: () => moveInQueue(by) }, sign);
  const head = make("div", { class: "sheet-head", tabindex: "-1" }, step(-1, "previous", "←"), step(1, "next", "→"), make("span", {}, `${thousands(placeIn[queue] + 1)} of ${thousands(entries.length)}`));
  find("queue").setAttribute("aria-label", queue);
  find("queue").replaceChildren(
    head,
    make("h2", {}, queueHeading(entry)),
    make("div", { class: "entries" }, ...entry.map((i, n) => entryFigure(i, n, entry.length))),
    make("div", { class: "sheet-actions" }, ...answersTo(entry).map(([key, text, title, answers]) => button(key, text, () => answerEntry(answers), title)), button("z", "Undo", takeBack, "Take the last step back")),
  );
  head.focus({ preventScroll: true }); // no button: Space and Enter would press it
}

function chooseQueue(name) {
  queue = name;
  if (view !== "review") return chooseView("review");
  showMode();
  rememberPlace();
}

function showQueueButtons() {
  find("queues").hidden = !QUEUES.slice(1).some(hasQueue);
  document.body.dataset.queue = queue;
  for (const name of QUEUES) {
    const button = find(`queue-${name}`);
    button.hidden = !hasQueue(name);
    button.setAttribute("aria-pressed", name === queue);
  }
}

function queueProgress() {
  const entries = entriesOf(queue);
  const { count } = DOC.queues[queue];
  const noun = queue === "duplicates" ? ["pair", "pairs"] : ["outlier", "outliers"];
  const parts = [`Decided ${thousands(entries.filter(isSettled).length)} of ${counted(entries.length, ...noun)}.`];
  if (count > entries.length) parts.push(`There are ${thousands(count)}; these are the ${queue === "duplicates" ? "most alike" : "farthest from their class"}.`);
  return parts;
}

// Back to the entry that was taken back, where it is of the queue in sight.
function returnToEntry(step) {
  if (step.queue !== queue) return say(step.queue ? `Taken back, among the ${step.queue}.` : "Taken back, among the labels."), showQueue();
  placeIn[queue] = step.entry;
  showQueue();
}

function pressedInQueue(event, key) {
  const answer = answersTo(entriesOf(queue)[placeIn[queue]]).find(([wanted]) => wanted === key);
  const move = { ArrowRight: 1, ArrowLeft: -1 }[key];
  if (move) moveInQueue(move);
  else if (key === "z") takeBack();
  else if (key === "?") openKeys();
  else if (answer && lettersDecide) event.repeat || answerEntry(answer[3]); // a key that is held down decides once
  else if (key in OPENING && lettersDecide) OPENING[key]();
  else return;
  event.preventDefault();
}

for (const name of QUEUES) find(`queue-${name}`)?.addEventListener("click", () => chooseQueue(name));
