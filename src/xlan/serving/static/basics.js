// @ts-check
// What every part of the page needs. What comes from files or from the server becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An error whose message is written for the person at the page. */
export class Refusal extends Error {
  /** @param {string} message @param {string} again what a button that may help says; "" where nothing would */
  constructor(message, again = "") {
    super(message);
    this.again = again;
  }
}

/** Hand a file to the person. @param {string} content @param {string} type @param {string} name */
export function save(content, type, name) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/**
 * The one element of its kind; a page without it is broken.
 * @template {Element} T
 * @param {string} selector @param {new () => T} type @param {ParentNode} root
 * @returns {T}
 */
export function find(selector, type, root = document) {
  const found = root.querySelector(selector);
  if (!(found instanceof type)) throw new Error(`the page has no ${selector}`);
  return found;
}

/**
 * @template {Element} T
 * @param {T} element @param {Record<string, string | number>} attributes @param {(Node | string)[]} children
 * @returns {T}
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/**
 * An HTML element.
 * @param {string} tag @param {Record<string, string | number>} attributes @param {(Node | string)[]} children
 */
export const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. @param {string} tag @param {Record<string, string | number>} attributes @param {Node[]} children */
export const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Names and values as a list. @param {[string, string][]} pairs */
export const listed = (pairs) =>
  make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));

/** What is not nothing is never "0 %", what is not all never "100 %". @param {number} share of 1 */
export function percent(share) {
  if (share > 0 && share < 0.01) return "under\u00a01\u00a0%";
  return `${share > 0.99 && share < 1 ? 99 : Math.round(100 * share)}\u00a0%`;
}

/** A bar as long as a share of 1; the number stands beside it. @param {number} share @param {string} name */
export function meter(share, name) {
  const bar = make("i");
  bar.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
  return make("div", { class: "meter", role: "img", "aria-label": `${name} ${percent(share)}` }, bar);
}
