// Deciding: the same buttons below the cards and in focus mode, the same keys everywhere.
const isMany = () => mode === "cards" && selected.size > 0;
const targets = () => (mode === "batches" ? [] : isMany() ? [...selected] : current >= 0 ? [shown[current]] : []);

// Suggestions that all targets share; a decision on many cards must mean the same on each.
function choices() {
  const cards = targets();
  if (!cards.length || DOC.blind) return [];
  return CARDS.suggested[cards[0]].filter((label) => cards.every((i) => CARDS.suggested[i].includes(label))).slice(0, 3);
}

// A card out of sight is brought into sight instead of being decided about.
function bringIntoSight() {
  if (mode !== "cards" || isMany() || isInSight(shown[current])) return false;
  goTo(current);
  say("This card was out of sight. Look at it, then decide.");
  return true;
}

function act(decision, labels = []) {
  const cards = targets();
  if (!cards.length) return;
  if (isMany()) return actOnMany(decision, labels);
  if (isResting) return say("All cards here are decided. Move to one to decide anew.");
  if (bringIntoSight()) return;
  decide(cards, decision, labels);
  advance();
}

// Of the selected cards those in sight; the next press is about the next ones. Earlier decisions change only on request.
function actOnMany(decision, labels) {
  const [seen, unseen] = [[], []];
  for (const i of selected) (isInSight(i) ? seen : unseen).push(i);
  const places = new Map(shown.map((i, n) => [i, n]));
  const goToFirst = (cards) => goTo(Math.min(...cards.map((i) => places.get(i))));
  if (!seen.length) return goToFirst(unseen), say("The selected cards were out of sight. Look at them, then decide.");
  const finish = (cards) => {
    decide(cards, decision, labels);
    for (const i of seen) selected.delete(i);
    redress(seen);
    if (unseen.length) goToFirst(unseen);
    else focusCard();
    showActions();
    const rest = unseen.length ? ` ${counted(unseen.length, "selected card")} out of sight: press again.` : "";
    say(`${counted(cards.length, "card")}: ${KINDS[decision]}. Z takes it back.${rest}`);
  };
  const open = seen.filter((i) => !decided.get(i)?.decision);
  if (open.length === seen.length) return finish(seen);
  askAbout(seen.length - open.length, open.length, (all) => finish(all ? seen : open));
}

function askAbout(numDone, numOpen, answer) {
  const others = numOpen ? [[`Decide the other ${thousands(numOpen)}`, () => answer(false), "primary"]] : [];
  ask(`${counted(numDone, "selected card is", "selected cards are")} decided already`, [...others, [numOpen ? "Change all" : "Change", () => answer(true)], ["Cancel", () => {}]]);
}

// A question with buttons: their text, what they do, and their kind.
function ask(question, answers) {
  const dialog = find("ask");
  const button = ([text, run, kind]) => make("button", { type: "button", class: kind ?? false, onclick: () => (dialog.close(), run()) }, text);
  dialog.replaceChildren(make("h2", {}, question), make("div", { class: "bar-row" }, ...answers.map(button)));
  dialog.showModal();
}

// On to the next card that is not decided, from the start again after the last.
function advance() {
  const isOpen = (i) => !decided.get(i)?.decision;
  let next = shown.findIndex((i, n) => n > current && isOpen(i));
  if (next < 0) next = shown.findIndex(isOpen);
  goTo(next < 0 ? current : next);
  if (next >= 0) return;
  isResting = true;
  say("All cards here are decided.");
}

function takeBack() {
  const cards = undo();
  if (!cards.length) return say("Nothing to take back.");
  if (queue !== "labels") return returnToEntry(taken);
  if (taken.queue) return say(`Taken back, among the ${taken.queue}.`), showMode();
  if (mode === "batches") return returnToBatch(cards);
  const n = shown.indexOf(cards[0]);
  if (n >= 0) goTo(n);
  else say("Taken back, on a card that the filters hide.");
}

function actionButtons() {
  const button = (key, text, run, title, share) =>
    make("button", { type: "button", title, class: share === undefined ? false : "class-key", onclick: run, disabled: !cards.length }, make("kbd", {}, key), make("bdi", { class: "name" }, text), share == null ? null : make("small", { class: "share" }, percent(share)));
  const cards = targets();
  const whom = isMany() ? `${counted(cards.length, "card")} selected` : cards.length ? shownId(cards[0]) : "no card";
  const shareOf = (label) => (cards.length === 1 ? CARDS.shares[cards[0]][CARDS.suggested[cards[0]].indexOf(label)] : null);
  const given = new Set(cards.map((i) => CARDS.given[i]));
  const target = make("span", { class: `target${isMany() ? " many" : ""}`, title: whom }, whom);
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
    button("K", keepText, () => act("keep"), "The given label is right", null),
    ...choices().map((label, n) => button(n + 1, className(label), () => act("relabel", [label]), `It is ${className(label)}`, shareOf(label))),
    button("/", "Other class", () => openFinder(false), "Find any class by typing"),
    button("S", "Several", () => openFinder(true), "More than one class is right"),
    button("N", "None", () => act("none"), "None of the classes is right"),
    button("D", "Drop", () => act("drop"), "Leave it out of the training"),
    button("U", "Unsure", () => act("unsure"), "Cannot be told"),
    button("Z", "Undo", takeBack, "Take the last step back"),
  ];
}

function showActions() {
  if (mode === "cards") find("actions").replaceChildren(...actionButtons());
}
