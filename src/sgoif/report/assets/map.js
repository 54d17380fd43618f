// The map: every card where the model sees it, among a sample of all other examples. A loop drawn around some shows them.
const NEAR = 9; // pixels within which a card is pointed at
const MAP_SIDE = 999;
let loop = null; // points of the loop that is being drawn

function placeOnMap(i) {
  const canvas = find("map");
  const point = DOC.map.cards[i];
  return point && [10 + ((canvas.clientWidth - 20) * point[0]) / MAP_SIDE, 10 + ((canvas.clientHeight - 20) * (MAP_SIDE - point[1])) / MAP_SIDE];
}

const hueOf = (label) => (label * 137.5) % 360; // neighbouring numbers differ in hue

function colourOfCard(i, by, style) {
  if (by === "class") return `hsl(${hueOf(CARDS.given[i])} 65% 50%)`;
  const name = by === "p" ? "--accent" : { keep: "--good", unsure: "--doubt" }[decided.get(i)?.decision] ?? (decided.get(i)?.decision ? "--bad" : "--edge");
  return style.getPropertyValue(name);
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
  Object.assign(canvas, { width: w * scale, height: h * scale });
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const by = find("map-by").value;
  pen.scale(scale, scale);
  pen.fillStyle = style.getPropertyValue("--edge");
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
    pen.fillStyle = pen.strokeStyle = colourOfCard(i, by, style);
    const decision = decided.get(i)?.decision;
    mark(pen, place, by !== "decision" ? "disc" : !decision ? "ring" : decision === "keep" ? "disc" : decision === "unsure" ? "square" : "triangle");
  }
  if (!loop) return;
  pen.globalAlpha = 1;
  pen.strokeStyle = style.getPropertyValue("--ink");
  pen.setLineDash([4, 3]);
  pen.beginPath();
  loop.forEach(([x, y]) => pen.lineTo(x, y));
  pen.closePath();
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

function showPointedAt(x, y) {
  const i = loop ? -1 : cardAt(x, y);
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
  find("map-note").textContent = `${told}${lost ? ` ${counted(lost, "card has", "cards have")} no place.` : ""} Draw a loop to see the cards in it.`;
  canvas.setAttribute("aria-label", told);
  find("map-by").addEventListener("change", drawMap);
  canvas.addEventListener("pointerdown", (event) => ((loop = [[event.offsetX, event.offsetY]]), canvas.setPointerCapture(event.pointerId)));
  canvas.addEventListener("pointermove", (event) => {
    if (loop) loop.push([event.offsetX, event.offsetY]), drawMap();
    else showPointedAt(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerup", endLoop);
  canvas.addEventListener("pointercancel", () => ((loop = null), drawMap()));
  canvas.addEventListener("pointerleave", () => (find("pointed-at").hidden = true));
}
