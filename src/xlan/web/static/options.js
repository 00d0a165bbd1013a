// @ts-check
// How to look for the words: what the page in the browser offers of the server's options.

import { find } from "./basics.js";

/** @typedef {{fields: string[][], words: string, drawing: boolean}} Options */

const field = find("#controls input[name=beams]", HTMLInputElement);

/** What is chosen, as fields and in words. @returns {Options} */
export function options() {
  const value = Math.min(Number(field.max), Math.max(Number(field.min), Math.round(Number(field.value || field.defaultValue))));
  field.value = String(value);
  const words = value === 1 ? "the likeliest word each time" : `search keeping ${value} sentences`;
  return { fields: [["beams", String(value)]], words, drawing: false };
}

export function showOptions() {
  find("#chosen", HTMLElement).textContent = options().words;
}
