// @ts-check
// Pictures of the server to try the page with.

import { find, make } from "./basics.js";

/** Show them, as buttons; `use` is given the one that is chosen. @param {(file: File) => void} use */
export async function examples(use) {
  const response = await fetch("examples").catch(() => null);
  /** @type {string[]} */
  const names = response?.ok ? await response.json().catch(() => []) : [];
  const items = names.map((name) => {
    const address = `examples/${encodeURIComponent(name)}`;
    const image = make("img", { src: address, alt: "", width: 150, height: 110, loading: "lazy" });
    const button = make("button", { type: "button", class: "button" }, image, make("span", {}, name));
    button.addEventListener("click", async () => {
      const found = await fetch(address).catch(() => null);
      if (found?.ok) use(new File([await found.blob()], `${name}.jpg`, { type: "image/jpeg" }));
    });
    return make("li", {}, button);
  });
  find("#examples ul", HTMLElement).replaceChildren(...items);
  find("#examples", HTMLElement).hidden = !items.length;
}
