// Deciding: the same buttons below the cards and in an opened card, the same keys everywhere.
const targets = () => (selected.size && !find("opened").open ? [...selected] : current >= 0 ? [shown[current]] : []);

// Suggestions that all targets share; a decision on many cards must mean the same on each.
function choices() {
  const cards = targets();
  if (!cards.length || DOC.blind) return [];
  return CARDS.suggested[cards[0]].filter((label) => cards.every((i) => CARDS.suggested[i].includes(label))).slice(0, 3);
}

function act(decision, labels = []) {
  const cards = targets();
  if (!cards.length) return;
  decide(cards, decision, labels);
  if (selected.size && !find("opened").open) {
    say(`${counted(cards.length, "card")}: ${KINDS[decision]}. Z takes it back.`);
    clearSelection();
  } else advance();
}

function advance() {
  let next = current + 1;
  while (next < shown.length && decided.get(shown[next])?.decision) next++;
  goTo(next < shown.length ? next : current);
  if (find("opened").open) openCard();
}

function takeBack() {
  const cards = undo();
  if (!cards.length) return say("Nothing to take back.");
  const n = shown.indexOf(cards[0]);
  if (n >= 0) goTo(n);
  if (find("opened").open) openCard();
}

function actionButtons() {
  const button = (key, text, run, title) =>
    make("button", { type: "button", title, onclick: run }, make("span", { class: "name" }, text), make("kbd", {}, key));
  const cards = targets();
  const whom = selected.size && !find("opened").open ? `${counted(cards.length, "card")} selected` : cards.length ? shownId(cards[0]) : "no card";
  const given = new Set(cards.map((i) => CARDS.given[i]));
  const keepText = given.size === 1 ? `Keep ${className([...given][0])}` : "Keep";
  return [
    make("span", { class: "target", title: whom }, whom),
    button("K", keepText, () => act("keep"), "The given label is right"),
    ...choices().map((label, n) => button(n + 1, className(label), () => act("relabel", [label]), `It is ${className(label)}`)),
    button("/", "Other class", () => openFinder(false), "Find any class by typing"),
    button("S", "Several", () => openFinder(true), "More than one class is right"),
    button("N", "None", () => act("none"), "None of the classes is right"),
    button("D", "Drop", () => act("drop"), "Leave it out of the training"),
    button("U", "Unsure", () => act("unsure"), "Cannot be told"),
    button("Z", "Undo", takeBack, "Take the last step back"),
  ];
}

function showActions() {
  find("actions").replaceChildren(...actionButtons());
}
