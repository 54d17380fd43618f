// The keyboard. Letters are decisions, so movement is on the arrows.
const KEYS = [
  ["← → ↑ ↓", "move from card to card"],
  ["Enter", "open a card; Esc closes it"],
  ["K", "keep: the given label is right"],
  ["1 2 3", "relabel as the first, second or third suggestion"],
  ["/", "relabel as any class, by typing its name"],
  ["S", "several classes are right"],
  ["N", "none of the classes is right"],
  ["D", "drop from the training"],
  ["U", "unsure"],
  ["T", "write a note (in an opened card)"],
  ["X or Space", "select; Shift with arrows selects on; A selects the group"],
  ["Z", "undo"],
];

function openKeys() {
  const list = KEYS.flatMap(([keys, text]) => [make("dt", {}, ...keys.split(" or ").flatMap((part, n) => [n ? " or " : "", make("kbd", {}, part)])), make("dd", {}, text)]);
  const close = make("button", { type: "button", class: "primary", onclick: () => find("keys").close() }, "Close");
  find("keys").replaceChildren(make("div", { class: "keys" }, make("h2", {}, "Keys"), make("dl", {}, ...list), make("p", {}, "With cards selected, a key decides about all of them."), close));
  find("keys").showModal();
}

const DECIDING = {
  k: () => act("keep"),
  d: () => act("drop"),
  u: () => act("unsure"),
  n: () => act("none"),
  s: () => openFinder(true),
  "/": () => openFinder(false),
  z: takeBack,
  "?": openKeys,
};

function moved(event) {
  const places = { ArrowRight: current + 1, ArrowLeft: current - 1, ArrowDown: goRow(1), ArrowUp: goRow(-1), Home: 0, End: shown.length - 1 };
  if (!(event.key in places)) return false;
  if (find("opened").open) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return false; // those scroll the card
    goTo(places[event.key]);
    openCard();
  } else if (event.shiftKey) extendTo(Math.min(Math.max(places[event.key], 0), shown.length - 1));
  else goTo(places[event.key]);
  return true;
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || find("finder").open || find("keys").open) return;
  const isTyping = event.target.matches("input, textarea, select");
  if (isTyping) {
    if (event.key === "Escape" && event.target.id === "note") return event.preventDefault(), event.stopPropagation(), event.target.blur();
    return;
  }
  if (find("findings").hidden) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const isOpen = find("opened").open;
  const isOnButton = event.target.matches("button, a, summary, label, [role=tab]");
  let isDone = true;
  if (moved(event)) isDone = true;
  else if (/^[123]$/.test(key)) {
    const label = choices()[Number(key) - 1];
    if (label === undefined) say("There is no such suggestion here; / finds any class.");
    else act("relabel", [label]);
  } else if (key in DECIDING) DECIDING[key]();
  else if (key === "t" && isOpen) find("note").focus();
  else if ((key === "x" || (key === " " && !isOnButton)) && !isOpen && current >= 0) toggle(shown[current]);
  else if (key === "a" && !isOpen && current >= 0) selectAll(groups.find((group) => group.cards.includes(shown[current])));
  else if (key === "Enter" && !isOnButton && !isOpen) openCard();
  else if (key === "Escape" && !isOpen && selected.size) clearSelection();
  else isDone = false;
  if (isDone) event.preventDefault();
}
