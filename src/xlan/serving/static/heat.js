// @ts-check
// Where the model looked, as a drawing and in words: the rule of xlan.pages.heat, so that all our pages show the same.

import { draw, make, percent } from "./basics.js";

/** @typedef {{text: string, probability: number}} Chance */
/** @typedef {{name: string, attribute: string | null, score: number, box: number[]}} Thing */
/** @typedef {{box: number[], share: number, region: number | null, name: string | null, attribute: string | null}} Look */
/** @typedef {Chance & {runners_up: Chance[], spatial: number[] | null, looked_at?: Look | null}} Word */

const STRENGTH = 0.85;
const CELL = 16; // pixels of a cell in the smooth drawing
const NAMED = 0.3; // things a detector is less sure of are not shown unless a word points at them
const EVEN = 1.5; // a strongest place below so many times the mean is hardly one

/** A grid's region for the picture as a whole says nothing of a place. @param {number[]} box */
const coversAll = ([x0, y0, x1, y1]) => x0 <= 0 && y0 <= 0 && x1 >= 1 && y1 >= 1;

/** The region with the greatest weight, or -1. @param {number[]} spatial @param {number[][]} boxes */
function strongest(spatial, boxes) {
  let top = -1;
  spatial.forEach((weight, i) => {
    if (weight > 0 && !coversAll(boxes[i]) && (top < 0 || weight > spatial[top])) top = i;
  });
  return top;
}

/** @param {number[]} box */
function rectangle(box) {
  const [x0, y0, x1, y1] = box.map((value) => Math.min(1, Math.max(0, value)));
  return { x: x0, y: y0, width: Math.max(0, x1 - x0), height: Math.max(0, y1 - y0) };
}

/**
 * An SVG of unit size to lay over the photo: opacity 0.85 · w / max w over each region, a line around where it looked.
 * @param {number[]} spatial [N] weights @param {number[][]} boxes [N][4] fractions of the photo
 * @param {Look | null} [looked] where it looked most, if that is known; else the strongest region
 */
export function cells(spatial, boxes, looked = null) {
  const top = strongest(spatial, boxes);
  const svg = draw("svg", { class: "heat", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (top < 0) return svg;
  spatial.forEach((weight, i) => {
    if (weight <= 0 || coversAll(boxes[i])) return;
    const opacity = ((STRENGTH * weight) / spatial[top]).toFixed(4);
    const numbers = { "data-region": i, "data-weight": weight.toFixed(4), "fill-opacity": opacity };
    svg.append(draw("rect", { ...rectangle(boxes[i]), ...numbers }));
  });
  const frame = rectangle(looked?.box ?? boxes[top]);
  for (const line of ["edge", "edge-in"]) svg.append(draw("rect", { ...frame, class: line }));
  return svg;
}

/**
 * Regions that tile the photo, row by row, without those that cover all of it; null where they do not.
 * @param {number[][]} boxes @returns {number[][] | null} rows of region numbers
 */
function grid(boxes) {
  /** @type {Map<string, {y: number, row: Map<string, {x: number, i: number}>}>} */
  const rows = new Map();
  const key = (/** @type {number} */ value) => value.toFixed(3);
  const placed = boxes.flatMap((box, i) => (coversAll(box) ? [] : [{ box, i }]));
  for (const { box, i } of placed) {
    const found = rows.get(key(box[1])) ?? { y: box[1], row: new Map() };
    rows.set(key(box[1]), found);
    found.row.set(key(box[0]), { x: box[0], i });
  }
  const width = rows.values().next().value?.row.size ?? 0;
  const near = (/** @type {number} */ share) => Math.abs(share - 1) < 0.01;
  /** @param {number[]} box */
  const same = ([x0, y0, x1, y1]) => near((x1 - x0) * width) && near((y1 - y0) * rows.size);
  const whole = placed.length > 1 && placed.length === width * rows.size && placed.every(({ box }) => same(box));
  if (!whole || [...rows.values()].some(({ row }) => row.size !== width)) return null;
  const ordered = [...rows.values()].sort((a, b) => a.y - b.y);
  return ordered.map(({ row }) => [...row.values()].sort((a, b) => a.x - b.x).map(({ i }) => i));
}

/**
 * Between the centres of which two cells a pixel lies, and how far: 0 at the first, 1 at the second, level at both.
 * @param {number} pixel @param {number} count of cells
 */
function between(pixel, count) {
  const place = Math.min(count - 1, Math.max(0, (pixel + 0.5) / CELL - 0.5));
  const first = Math.min(Math.floor(place), Math.max(0, count - 2));
  const far = place - first;
  return { first, second: Math.min(first + 1, count - 1), share: far * far * (3 - 2 * far) };
}

/**
 * The same heat without steps: a cell's own opacity at its centre, a smooth passage between centres.
 * @param {number[]} spatial @param {number[][]} rows of region numbers
 */
function smooth(spatial, rows) {
  const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", { class: "heat", "aria-hidden": "true" }));
  canvas.width = CELL * rows[0].length;
  canvas.height = CELL * rows.length;
  const context = canvas.getContext("2d");
  const most = Math.max(...rows.flat().map((i) => spatial[i]));
  if (!context || most <= 0) return canvas;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim();
  const colour = [1, 3, 5].map((i) => parseInt(String(context.fillStyle).slice(i, i + 2), 16)); // of #rrggbb
  const image = context.createImageData(canvas.width, canvas.height);
  for (let y = 0; y < canvas.height; y++) {
    const down = between(y, rows.length);
    for (let x = 0; x < canvas.width; x++) {
      const across = between(x, rows[0].length);
      const [above, below] = [rows[down.first], rows[down.second]].map(
        (row) => spatial[row[across.first]] * (1 - across.share) + spatial[row[across.second]] * across.share,
      );
      const weight = above * (1 - down.share) + below * down.share;
      image.data.set([...colour, Math.round((255 * STRENGTH * weight) / most)], 4 * (y * canvas.width + x));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Where the model looked, to lay over the photo: smooth where the regions are a grid, unless its cells are wanted.
 * @param {number[]} spatial @param {number[][]} boxes @param {boolean} exact @param {Look | null} [looked]
 */
export function heat(spatial, boxes, exact, looked = null) {
  const rows = exact ? null : grid(boxes);
  return rows ? smooth(spatial, rows) : cells(spatial, boxes, looked);
}

/** Attribute and name: "red car". @param {{name: string | null, attribute: string | null}} thing */
export const label = ({ name, attribute }) => [attribute, name].filter(Boolean).join(" ");

/** A named frame to lay over the photo. @param {{box: number[], name: string | null, attribute: string | null}} thing */
export function frame(thing) {
  const { x, y, width, height } = rectangle(thing.box);
  const box = make("div", { class: "thing", "aria-hidden": "true" }, make("span", {}, label(thing)));
  Object.entries({ left: x, top: y, width, height }).forEach(([side, share]) =>
    box.style.setProperty(side, `${100 * share}%`),
  );
  box.classList.toggle("low", y < 0.08); // no room for the name above it
  return box;
}

/** What is worth showing of all that a detector found. @param {Thing[] | undefined} things absent in old answers */
export const likely = (things) => (things ?? []).filter(({ score }) => score >= NAMED);

/** Captions in the order of the number that is shown beside them. @template {{confidence: number}} T @param {T[]} others */
export const ranked = (others) => [...others].sort((a, b) => b.confidence - a.confidence);

/** As "top left", or "" for the centre. @param {number[]} box */
function placeInWords([x0, y0, x1, y1]) {
  const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
  const down = y < 0.38 ? "top" : y > 0.62 ? "bottom" : "";
  const across = x < 0.38 ? "left" : x > 0.62 ? "right" : "";
  return `${down} ${across}`.trim();
}

/** @param {number[]} weights */
const total = (weights) => weights.reduce((sum, weight) => sum + weight, 0);

/** @param {number[]} spatial @param {number[][]} boxes @param {number} top */
function strongestInWords(spatial, boxes, top) {
  const places = spatial.filter((_, i) => !coversAll(boxes[i]));
  const even = places.length > 1 && spatial[top] < (EVEN * total(places)) / places.length;
  const place = placeInWords(boxes[top]);
  const much = even ? "evenly all over, a little more" : "most";
  return `${much} ${place ? `at the ${place}` : "in the centre"} (${percent(spatial[top])})`;
}

/** @param {Look} looked at something with a name */
function thingInWords(looked) {
  const where = looked.region === null ? "most inside the box of the" : "most at the";
  return `${where} ${label(looked)}, ${placeInWords(looked.box) || "centre"} (${percent(looked.share)})`;
}

/**
 * Attention in words, those of xlan.pages.explanation.
 * @param {number[]} spatial @param {number[][]} boxes @param {Look | null} [looked] where it looked most, if known
 */
export function whereItLooked(spatial, boxes, looked = null) {
  const top = strongest(spatial, boxes);
  const parts = [];
  if (looked?.name) parts.push(thingInWords(looked));
  else if (top >= 0) parts.push(strongestInWords(spatial, boxes, top));
  const whole = total(spatial.filter((_, i) => coversAll(boxes[i])));
  if (whole > 0) parts.push(`${percent(whole)} on the picture as a whole`);
  return parts.join(", ") || "nowhere in particular";
}

/** What there is to tell of a word beside its probability. @param {Word} word @param {number[][] | null} boxes */
export function traits(word, boxes) {
  /** @type {[string, string][]} */
  const told = [];
  const others = word.runners_up.map(({ text, probability }) => `${text} ${percent(probability)}`);
  if (others.length) told.push(["runners-up", others.join(", ")]);
  if (word.spatial && boxes) told.push(["looked at", whereItLooked(word.spatial, boxes, word.looked_at)]);
  return told;
}
