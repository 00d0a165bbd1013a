// @ts-check
// Where the model looked, as a drawing and in words: the rule of xlan.pages.heat, so that all our pages show the same.

import { draw, percent } from "./basics.js";

/** @typedef {{text: string, probability: number}} Chance */
/** @typedef {Chance & {runners_up: Chance[], spatial: number[] | null}} Word */

const STRENGTH = 0.85;
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
 * An SVG of unit size to lay over the photo: opacity 0.85 · w / max w over each region, a line around the strongest.
 * @param {number[]} spatial [N] weights @param {number[][]} boxes [N][4] fractions of the photo
 */
export function heat(spatial, boxes) {
  const top = strongest(spatial, boxes);
  const svg = draw("svg", { class: "heat", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  if (top < 0) return svg;
  spatial.forEach((weight, i) => {
    if (weight <= 0 || coversAll(boxes[i])) return;
    const opacity = ((STRENGTH * weight) / spatial[top]).toFixed(4);
    const numbers = { "data-region": i, "data-weight": weight.toFixed(4), "fill-opacity": opacity };
    svg.append(draw("rect", { ...rectangle(boxes[i]), ...numbers }));
  });
  for (const line of ["edge", "edge-in"]) svg.append(draw("rect", { ...rectangle(boxes[top]), class: line }));
  return svg;
}

/** As "top left", or "" for the centre. @param {number[]} box */
function placeInWords([x0, y0, x1, y1]) {
  const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
  const down = y < 0.38 ? "top" : y > 0.62 ? "bottom" : "";
  const across = x < 0.38 ? "left" : x > 0.62 ? "right" : "";
  return `${down} ${across}`.trim();
}

/** @param {number[]} weights */
const total = (weights) => weights.reduce((sum, weight) => sum + weight, 0);

/** Attention in words, those of xlan.pages.explanation. @param {number[]} spatial @param {number[][]} boxes */
export function whereItLooked(spatial, boxes) {
  const top = strongest(spatial, boxes);
  const places = spatial.filter((_, i) => !coversAll(boxes[i]));
  const parts = [];
  if (top >= 0) {
    const even = places.length > 1 && spatial[top] < (EVEN * total(places)) / places.length;
    const place = placeInWords(boxes[top]);
    const much = even ? "evenly all over, a little more" : "most";
    parts.push(`${much} ${place ? `at the ${place}` : "in the centre"} (${percent(spatial[top])})`);
  }
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
  if (word.spatial && boxes) told.push(["looked at", whereItLooked(word.spatial, boxes)]);
  return told;
}
