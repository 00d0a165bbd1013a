// @ts-check
// How to look for the words: the form's fields as the API takes them and as people say them.

import { find } from "./basics.js";

/** @typedef {{fields: string[][], words: string, drawing: boolean}} Options */

const form = find("#controls", HTMLFormElement);
const drawing = find("input[value=samples]", HTMLInputElement, form);

/** The value of a field, numbers brought into their range. @param {string} name */
function option(name) {
  const field = find(`input[name=${name}]`, HTMLInputElement, form);
  if (field.type !== "number") return field.value;
  const value = Math.min(Number(field.max), Math.max(Number(field.min), Number(field.value || field.defaultValue)));
  return (field.value = String(field.step === "1" ? Math.round(value) : value));
}

/** What is chosen, as the API takes it and in words. @returns {Options} */
export function options() {
  const names = drawing.checked ? ["samples", "temperature", "seed"] : ["beams"];
  const [first, temperature, seed] = names.map(option);
  const must = option("must").split(",").map((word) => word.trim()).filter(Boolean);
  const search = first === "1" ? "the likeliest word each time" : `search keeping ${first} sentences`;
  const how = drawing.checked ? `${first} drawn at random, temperature ${temperature}, seed ${seed}` : search;
  return {
    fields: [...names.map((name) => [name, option(name)]), ...must.map((word) => ["must", word])],
    words: must.length ? `${how}, with ${must.join(", ")}` : how,
    drawing: drawing.checked,
  };
}

export function showOptions() {
  for (const row of form.querySelectorAll("[data-method]")) {
    row.toggleAttribute("hidden", row.getAttribute("data-method") !== (drawing.checked ? "samples" : "beams"));
  }
  find("#chosen", HTMLElement).textContent = options().words;
}
