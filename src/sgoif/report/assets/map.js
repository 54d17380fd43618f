// The map: every card where the model sees it, among a sample of all other examples. A loop drawn around some shows them.
const NEAR = 9; // pixels within which a card is pointed at
const MAP_SIDE = 999;
const SIDEWAYS = 2; // how much farther a card counts that is not straight in the direction of an arrow key
let loop = null; // points of the loop that is being drawn
let cursor = -1; // the card that the arrow keys are on
let isWalking = false; // whether keys are used; who points sees no cursor

let [mapWidth, mapHeight] = [0, 0]; // as it was drawn last: to ask the canvas is slow

function placeOnMap(i) {
  const point = DOC.map.cards[i];
  return point && [10 + ((mapWidth - 20) * point[0]) / MAP_SIDE, 10 + ((mapHeight - 20) * (MAP_SIDE - point[1])) / MAP_SIDE];
}

const hueOf = (label) => (label * 137.5) % 360; // neighbouring numbers differ in hue

function colourOfCard(i, by, colours) {
  if (by === "class") return `hsl(${hueOf(CARDS.given[i])} 65% 50%)`;
  const decision = decided.get(i)?.decision;
  return colours[by === "p" ? "accent" : { keep: "good", unsure: "doubt" }[decision] ?? (decision ? "bad" : "edge")];
}

// Decisions differ in shape too: a ring is open, a disc is kept, a triangle changed, a square is unsure.
function mark(pen, [x, y], shape) {
  pen.beginPath();
  if (shape === "triangle") pen.moveTo(x, y - 5), pen.lineTo(x + 4.5, y + 3.5), pen.lineTo(x - 4.5, y + 3.5), pen.closePath();
  else if (shape === "square") pen.rect(x - 3.5, y - 3.5, 7, 7);
  else pen.arc(x, y, shape === "ring" ? 3 : 3.5, 0, 2 * Math.PI);
  if (shape === "ring") pen.stroke();
  else pen.fill();
}

function drawMap() {
  const canvas = find("map");
  if (!DOC.map || find("overview").hidden || !canvas.clientWidth) return;
  const [w, h, scale] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
  [mapWidth, mapHeight] = [w, h];
  Object.assign(canvas, { width: w * scale, height: h * scale });
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries(["accent", "good", "doubt", "bad", "edge", "ink"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
  const by = find("map-by").value;
  pen.scale(scale, scale);
  pen.fillStyle = colours.edge;
  pen.globalAlpha = by === "class" ? 0.5 : 0.28;
  for (const [x, y, label] of DOC.map.others) {
    if (by === "class") pen.fillStyle = `hsl(${hueOf(label)} 45% 55%)`;
    pen.fillRect(9 + ((w - 20) * x) / MAP_SIDE, 9 + ((h - 20) * (MAP_SIDE - y)) / MAP_SIDE, 2, 2);
  }
  pen.lineWidth = 1.5;
  for (let i = COUNT - 1; i >= 0; i--) {
    const place = placeOnMap(i);
    if (!place) continue;
    pen.globalAlpha = by === "p" ? 0.15 + 0.8 * (CARDS.p[i] ?? 0.5) : 0.85;
    pen.fillStyle = pen.strokeStyle = colourOfCard(i, by, colours);
    const decision = decided.get(i)?.decision;
    mark(pen, place, by !== "decision" ? "disc" : !decision ? "ring" : decision === "keep" ? "disc" : decision === "unsure" ? "square" : "triangle");
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colours.ink;
  if (isWalking && cursor >= 0) drawCursor(pen, placeOnMap(cursor));
  if (!loop) return;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  loop.forEach(([x, y]) => pen.lineTo(x, y));
  pen.closePath();
  pen.stroke();
}

function drawCursor(pen, [x, y]) {
  pen.beginPath();
  pen.arc(x, y, 9, 0, 2 * Math.PI);
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) pen.moveTo(x + 9 * dx, y + 9 * dy), pen.lineTo(x + 15 * dx, y + 15 * dy);
  pen.lineWidth = 2;
  pen.stroke();
}

function isInside([x, y], corners) {
  let inside = false;
  for (let a = 0, b = corners.length - 1; a < corners.length; b = a++) {
    const [[ax, ay], [bx, by]] = [corners[a], corners[b]];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

function cardAt(x, y) {
  let [found, least] = [-1, NEAR ** 2];
  for (let i = 0; i < COUNT; i++) {
    const place = placeOnMap(i);
    const distance = place ? (place[0] - x) ** 2 + (place[1] - y) ** 2 : Infinity;
    if (distance < least) [found, least] = [i, distance];
  }
  return found;
}

function endLoop() {
  const corners = loop;
  loop = null;
  drawMap();
  if (!corners) return;
  const wide = (k) => Math.max(...corners.map((point) => point[k])) - Math.min(...corners.map((point) => point[k]));
  if (wide(0) + wide(1) < 8) {
    const i = cardAt(...corners[0]);
    return i < 0 ? undefined : filterBy({}, new Set([i]));
  }
  const inside = NUMBERS.filter((i) => placeOnMap(i) && isInside(placeOnMap(i), corners));
  if (inside.length) filterBy({}, new Set(inside));
  else say("No card is inside the loop.");
}

// The nearest card in a direction, those straight ahead before others; the same one where there is none.
function cardBeside(from, [dx, dy]) {
  const [x, y] = placeOnMap(from);
  let [found, least] = [from, Infinity];
  for (let i = 0; i < COUNT; i++) {
    const place = placeOnMap(i);
    if (!place) continue;
    const ahead = (place[0] - x) * dx + (place[1] - y) * dy;
    const aside = Math.abs((place[0] - x) * dy - (place[1] - y) * dx);
    if (ahead >= 0.5 && ahead + SIDEWAYS * aside < least) [found, least] = [i, ahead + SIDEWAYS * aside];
  }
  return found;
}

// The next card of the list that is on the map: two at one place are told apart in this way.
function cardAfter(from, step) {
  let i = from + step;
  while (i >= 0 && i < COUNT && !DOC.map.cards[i]) i += step;
  return i >= 0 && i < COUNT ? i : from;
}

function moveCursor(i) {
  [cursor, isWalking] = [i, true];
  drawMap();
  pointAt(i);
  if (i < 0) return;
  const [sure, text] = [CARDS.p[i] == null ? "" : `, ${percent(CARDS.p[i])} wrong`, spoken(i)];
  find("map-said").textContent = `${pairName(i)}${sure}${text ? `, decided: ${text}` : ""}, ${shownId(i)}`;
}

function pressedOnMap(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const direction = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  const step = { PageDown: 1, PageUp: -1 }[event.key];
  if ((direction || step) && !isWalking) moveCursor(cursor < 0 ? cardAfter(-1, 1) : cursor); // begins after a click
  else if (direction) moveCursor(cardBeside(cursor, direction));
  else if (step) moveCursor(cardAfter(cursor, step));
  else if (event.key === "Home") moveCursor(cardAfter(-1, 1));
  else if (event.key === "Enter" && isWalking) filterBy({}, new Set([cursor]));
  else return;
  event.preventDefault();
}

function pointAt(i) {
  const box = find("pointed-at");
  box.hidden = i < 0;
  if (i < 0 || box.dataset.card === String(i)) return;
  box.dataset.card = i;
  const example = exampleAt(CARDS.example[i]);
  const shownThere = isText(example) ? written(example.text, 120) : isRow(example) ? null : picture(CARDS.example[i], shownId(i), "");
  box.replaceChildren(...[shownThere, make("small", {}, pairName(i))].filter(Boolean));
}

function startMap() {
  find("map-panel").hidden = !DOC.map;
  if (!DOC.map) return;
  const canvas = find("map");
  const lost = DOC.map.cards.filter((place) => !place).length;
  const told = `${thousands(COUNT - lost)} cards among ${thousands(DOC.map.others.length)} of ${counted(DOC.map.count, "example")}, along the two directions in which they differ most.`;
  find("map-note").textContent = `${told}${lost ? ` ${counted(lost, "card has", "cards have")} no place.` : ""} Draw a loop to see the cards in it, or go from card to card with the arrow keys; Enter shows the card.`;
  canvas.setAttribute("aria-label", told);
  find("map-by").addEventListener("change", drawMap);
  canvas.addEventListener("pointerdown", (event) => ((isWalking = false), (loop = [[event.offsetX, event.offsetY]]), canvas.setPointerCapture(event.pointerId)));
  canvas.addEventListener("pointermove", (event) => {
    if (loop) loop.push([event.offsetX, event.offsetY]), drawMap();
    else pointAt(cardAt(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerup", endLoop);
  canvas.addEventListener("pointercancel", () => ((loop = null), drawMap()));
  canvas.addEventListener("pointerleave", () => (find("pointed-at").hidden = true));
  if (lost === COUNT) return;
  canvas.tabIndex = 0;
  canvas.addEventListener("keydown", pressedOnMap);
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && moveCursor(cursor < 0 ? cardAfter(-1, 1) : cursor));
  canvas.addEventListener("blur", () => ((isWalking = false), (find("pointed-at").hidden = true), drawMap()));
}
