// The keyboard. Letters are decisions, so movement is on the arrows.
const KEYS = [
  ["← → ↑ ↓", "move from card to card"],
  ["B F G", "batches, one card at a time, all cards"],
  ["Enter", "in a batch: accept all but the exceptions; among all cards: open one, Esc goes back"],
  ["X or Space", "in a batch: mark an exception; among all cards: select, Shift with arrows selects on, A the group"],
  ["L", "leave this batch for later"],
  ["K", "keep: the given label is right"],
  ["1 2 3", "relabel as the first, second or third class"],
  ["/", "relabel as any class, by typing its name"],
  ["S", "several classes are right"],
  ["N", "none of the classes is right"],
  ["D", "drop from the training"],
  ["U", "unsure"],
  ["T", "write a note (one card at a time)"],
  ["L R", "among duplicates: drop the left or the right one; 1 and 2 take the label of one for both, K keeps both"],
  ["P", "show the raw pixels of small pictures"],
  ["Z", "undo"],
];

const SAMPLE_KEYS = new Set(["← → ↑ ↓", "K", "/", "N", "U", "T", "P", "Z"]);

function openKeys() {
  const list = KEYS.filter(([keys]) => (!DOC.sample || SAMPLE_KEYS.has(keys)) && (keys !== "L R" || hasQueue("duplicates"))).flatMap(([keys, text]) => [make("dt", {}, ...keys.split(" or ").flatMap((part, n) => [n ? " or " : "", make("kbd", {}, part)])), make("dd", {}, text)]);
  const close = make("button", { type: "button", class: "primary", onclick: () => find("keys").close() }, "Close");
  const letters = make("input", { type: "checkbox", checked: lettersDecide });
  letters.addEventListener("change", () => (lettersDecide = letters.checked));
  const choice = make("label", {}, letters, " Letters and digits decide (switch off where dictation or a screen reader types them)");
  find("keys").replaceChildren(make("div", { class: "keys" }, make("h2", {}, "Keys"), make("dl", {}, ...list), make("p", {}, "With cards selected, a key decides about those of them that are in sight."), make("p", {}, choice), close));
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
  if (mode === "focus") {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return false; // those scroll the card
    goTo(places[event.key]);
  } else if (event.shiftKey) extendTo(Math.min(Math.max(places[event.key], 0), shown.length - 1));
  else goTo(places[event.key]);
  return true;
}

function decidedBy(key) {
  if (/^[123]$/.test(key)) {
    const label = choices()[Number(key) - 1];
    if (label === undefined) say("There is no such suggestion here; / finds any class.");
    else act("relabel", [label]);
  } else DECIDING[key]();
}

const OPENING = { b: () => chooseMode("batches"), f: () => openFromBatch(), g: () => chooseMode("cards"), p: showPixels };

// The tile that the arrow keys are on, alone.
function openFromBatch() {
  if (mode === "batches" && batch.cards.length) current = shown.indexOf(batch.cards[tile]);
  chooseMode("focus");
}

function showPixels() {
  say(document.body.classList.toggle("raw") ? "Small pictures by their pixels." : "Small pictures smooth.");
}

function pressedInField(event) {
  if (event.key !== "Escape" || event.target.id !== "note") return;
  event.preventDefault(); // leaves the note, not the card
  event.stopPropagation();
  document.querySelector(".sheet-head").focus();
}

function pressedAmongCards(key, isOnButton) {
  if (key === "x" || (key === " " && !isOnButton)) toggle(shown[current]);
  else if (key === "a") selectAll(groups.find((group) => group.cards.includes(shown[current])));
  else if (key === "Enter" && !isOnButton) openFocus();
  else if (key === "Escape" && selected.size) clearSelection();
  else return false;
  return true;
}

function pressed(event) {
  if (document.querySelector("dialog[open]") || view !== "review" || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return pressedInField(event);
  const key = letterOf(event);
  if (event.ctrlKey || event.metaKey) {
    if (key !== "z" || event.shiftKey) return;
    event.preventDefault();
    return takeBack();
  }
  if (queue !== "labels") return pressedInQueue(event, key);
  if (DOC.sample && "123dsxa ".includes(key)) return; // one card at a time: right, wrong, or not to be told
  const isOnTile = event.target.matches(".tile");
  const isOnButton = event.target.matches("button, a, summary, label, [role=tab]") && !isOnTile;
  if (mode === "batches" && pressedInBatch(key, isOnButton || (isOnTile && key === " "))) return event.preventDefault();
  const isDeciding = mode !== "batches" && (/^[123]$/.test(key) || key in DECIDING);
  if (mode !== "batches" && moved(event)) event.preventDefault();
  else if ((isDeciding && lettersDecide) || key === "?" || key === "z") {
    event.preventDefault();
    if (!event.repeat) decidedBy(key); // a key that is held down decides once
  } else if (key in OPENING && lettersDecide) event.preventDefault(), OPENING[key]();
  else if (mode === "focus" && key === "t") event.preventDefault(), find("note").focus();
  else if (mode === "focus" && key === "Escape") event.preventDefault(), closeFocus();
  else if (mode === "cards" && current >= 0 && pressedAmongCards(key, isOnButton)) event.preventDefault();
}
