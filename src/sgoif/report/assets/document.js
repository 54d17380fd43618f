// The page's data, and how elements are made of it. Text from the data is only ever set as text, never as markup.
const DOC = JSON.parse(document.getElementById("document").textContent);
document.getElementById("document").remove(); // the text is as large as all examples, and not needed twice
const CARDS = DOC.cards;
const COUNT = CARDS.id.length; // suspicious labels; examples of other queues follow them
const NUMBERS = CARDS.id.map((_, i) => i);
for (const [name, values] of Object.entries(DOC.extras)) CARDS[name].push(...values);
const find = (id) => document.getElementById(id);

const RIGHT_TO_LEFT = /[\u0590-\u08ff\u200e\u200f\u202a-\u202e\ufb1d-\ufdff\ufe70-\ufeff]/;

// A name that runs the other way must not turn the words around it.
function isolated(name) {
  return RIGHT_TO_LEFT.test(name) ? `\u2068${name}\u2069` : name;
}

function className(label) {
  return label == null || label < 0 ? "" : (DOC.classes[label] ?? String(label));
}

// Where checks are mixed in, an id such as cat/17.png would give the answer away.
function shownId(i) {
  return DOC.secret ? `card ${i + 1}` : CARDS.id[i];
}

function bestOf(i) {
  return CARDS.suggested[i]?.[0] ?? -1; // examples of other queues have none
}

function percent(share) {
  if (share == null) return "?";
  return share > 0 && share < 0.0005 ? "<0.1%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
}

const thousands = new Intl.NumberFormat("en").format; // made once: making it takes longer than drawing a card

function counted(number, one, many = `${one}s`) {
  return `${thousands(number)} ${number === 1 ? one : many}`;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function meter(share) {
  const box = { viewBox: "0 0 100 8", preserveAspectRatio: "none", class: "meter", "aria-hidden": "true" };
  const track = draw("rect", { class: "track", width: 100, height: 8 });
  return draw("svg", box, track, draw("rect", { class: "fill", width: 100 * share, height: 8 }));
}

let hideMessage = 0;
function say(text) {
  const box = find("message");
  (document.querySelector("dialog[open]") ?? document.body).append(box); // a dialog covers all that is not in it
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hideMessage);
  hideMessage = setTimeout(() => (box.hidden = true), 6000);
}
