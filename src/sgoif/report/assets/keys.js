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

const SAMPLE_KEYS = new Set(["← → ↑ ↓", "Enter", "K", "/", "N", "U", "T", "Z"]);

function openKeys() {
  const list = KEYS.filter(([keys]) => !DOC.sample || SAMPLE_KEYS.has(keys)).flatMap(([keys, text]) => [make("dt", {}, ...keys.split(" or ").flatMap((part, n) => [n ? " or " : "", make("kbd", {}, part)])), make("dd", {}, text)]);
  const close = make("button", { type: "button", class: "primary", onclick: () => find("keys").close() }, "Close");
  const letters = make("input", { type: "checkbox", checked: lettersDecide });
  letters.addEventListener("change", () => (lettersDecide = letters.checked));
  const choice = make("label", {}, letters, " Letters and digits decide (switch off where dictation or a screen reader types them)");
  find("keys").replaceChildren(make("div", { class: "keys" }, make("h2", {}, "Keys"), make("dl", {}, ...list), make("p", {}, "With cards selected, a key decides about all of them."), make("p", {}, choice), close));
  find("keys").showModal();
}

let lettersDecide = true;

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

// The letter of a key, on keyboards that write another script too.
function letterOf(event) {
  if (event.key.length > 1) return event.key;
  const latin = /^[\x20-\x7e]$/.test(event.key) ? event.key : /^Key([A-Z])$/.exec(event.code)?.[1];
  return (latin ?? event.key).toLowerCase();
}

function decidedBy(key) {
  if (/^[123]$/.test(key)) {
    const label = choices()[Number(key) - 1];
    if (label === undefined) say("There is no such suggestion here; / finds any class.");
    else act("relabel", [label]);
  } else DECIDING[key]();
}

function pressed(event) {
  const isOpen = find("opened").open;
  if (find("finder").open || find("keys").open || find("findings").hidden || event.altKey) return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key !== "Escape" || event.target.id !== "note") return;
    event.preventDefault(); // leaves the note, not the card
    event.stopPropagation();
    return document.querySelector(".sheet-head").focus();
  }
  const key = letterOf(event);
  if (event.ctrlKey || event.metaKey) {
    if (key !== "z" || event.shiftKey) return;
    event.preventDefault();
    return takeBack();
  }
  if (DOC.sample && "123dsxa ".includes(key)) return; // one card at a time: right, wrong, or not to be told
  const isDeciding = /^[123]$/.test(key) || key in DECIDING;
  const isOnButton = event.target.matches("button, a, summary, label, [role=tab]");
  if (moved(event)) event.preventDefault();
  else if (isDeciding && (lettersDecide || key === "?")) {
    event.preventDefault();
    if (event.repeat) return; // a key that is held down decides once
    const isSeen = isOpen || selected.size || isInSight() || key === "?" || key === "z";
    if (isSeen) decidedBy(key);
    else goTo(current);
  } else if (key === "t" && isOpen) event.preventDefault(), find("note").focus();
  else if ((key === "x" || (key === " " && !isOnButton)) && !isOpen && current >= 0) event.preventDefault(), toggle(shown[current]);
  else if (key === "a" && !isOpen && current >= 0) event.preventDefault(), selectAll(groups.find((group) => group.cards.includes(shown[current])));
  else if (key === "Enter" && !isOnButton && !isOpen) event.preventDefault(), openCard();
  else if (key === "Escape" && !isOpen && selected.size) event.preventDefault(), clearSelection();
}
