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
  if (isResting && !selected.size) return say("All cards here are decided. Move to one to decide anew.");
  decide(cards, decision, labels);
  if (selected.size && !find("opened").open) {
    say(`${counted(cards.length, "card")}: ${KINDS[decision]}. Z takes it back.`);
    clearSelection();
    focusCard();
  } else advance();
}

// On to the next card that is not decided, from the start again after the last.
function advance() {
  const isOpen = (i) => !decided.get(i)?.decision;
  let next = shown.findIndex((i, n) => n > current && isOpen(i));
  if (next < 0) next = shown.findIndex(isOpen);
  goTo(next < 0 ? current : next);
  if (find("opened").open) openCard();
  if (next >= 0) return;
  isResting = true;
  say("All cards here are decided.");
}

function takeBack() {
  const cards = undo();
  if (!cards.length) return say("Nothing to take back.");
  const n = shown.indexOf(cards[0]);
  if (n >= 0) goTo(n);
  else say("Taken back, on a card that the filters hide.");
  if (find("opened").open) openCard();
}

function actionButtons() {
  const button = (key, text, run, title) =>
    make("button", { type: "button", title, onclick: run, disabled: !cards.length }, make("bdi", { class: "name" }, text), make("kbd", {}, key));
  const cards = targets();
  const whom = selected.size && !find("opened").open ? `${counted(cards.length, "card")} selected` : cards.length ? shownId(cards[0]) : "no card";
  const given = new Set(cards.map((i) => CARDS.given[i]));
  const target = make("span", { class: `target${selected.size ? " many" : ""}`, title: whom }, whom);
  const name = given.size === 1 ? isolated(className([...given][0])) : "";
  if (DOC.sample)
    return [
      target,
      button("K", `Right: ${name}`, () => act("keep"), "The given label is right"),
      button("/", "Wrong: other class", () => openFinder(false), "Find the right class by typing"),
      button("N", "Wrong: no class fits", () => act("none"), "The label is wrong, and so is every other"),
      button("U", "Cannot tell", () => act("unsure"), "Counts as open: the interval gets wider"),
      button("Z", "Undo", takeBack, "Take the last step back"),
    ];
  const keepText = name ? `Keep ${name}` : "Keep";
  return [
    target,
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
