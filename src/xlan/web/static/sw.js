// @ts-check
// Keeps the folder's files in the browser, so that the page works without a network. The export fills in VERSION, which
// changes with every file, and FILES.

const VERSION = "@VERSION@";
const FILES = new Set(["@FILES@"]);
const KEPT = `xlan ${VERSION} ${new URL("./", location.href).pathname}`;
const worker = /** @type {any} */ (self);

/** The file of this folder that a request asks for; null where it is none. @param {Request} request */
function fileOf(request) {
  const here = new URL("./", location.href);
  const asked = new URL(request.url);
  if (request.method !== "GET" || asked.origin !== here.origin || !asked.pathname.startsWith(here.pathname)) return null;
  const name = asked.pathname.slice(here.pathname.length) || "index.html";
  return FILES.has(name) ? new URL(name, here).href : null;
}

/** From what is kept, else from the folder; then it is kept. @param {string} address */
async function answer(address) {
  const kept = await caches.open(KEPT);
  const found = await kept.match(address);
  if (found) return found;
  const fresh = await fetch(address, { cache: "no-cache" });
  if (fresh.status === 200) void kept.put(address, fresh.clone()).catch(() => {}); // a full disk keeps nothing
  return fresh;
}

async function install() {
  const small = [...FILES].filter((name) => !/^(model|runtime)\//.test(name)); // the rest comes when it is asked for
  const kept = await caches.open(KEPT);
  await kept.addAll(small.map((name) => new Request(name, { cache: "no-cache" })));
  await worker.skipWaiting();
}

async function activate() {
  const own = ` ${new URL("./", location.href).pathname}`;
  const old = (await caches.keys()).filter((name) => name.startsWith("xlan ") && name.endsWith(own) && name !== KEPT);
  await Promise.all(old.map((name) => caches.delete(name)));
  await worker.clients.claim();
}

worker.addEventListener("install", (/** @type {any} */ event) => event.waitUntil(install()));
worker.addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(activate()));
worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const address = fileOf(event.request);
  if (address) event.respondWith(answer(address));
});
