"use strict";
const $ = (id) => document.getElementById(id);
const state = { gallery: null, probe: null, found: null, pair: [null, null] };

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

async function request(method, path, body) {
  const response = await fetch(path, { method, body, headers: { "X-Widemargin": "1" } });
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function attempt(work) {
  say("");
  try { await work(); } catch (error) { say(error.message); }
}

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------- identify

async function identify(file) {
  state.probe = file;
  $("probe").src = URL.createObjectURL(file);
  $("probe").hidden = false;
  $("hint").hidden = true;
  $("verdict").textContent = "Searching…";
  $("verdict").className = "verdict";
  state.found = null;
  await attempt(async () => { state.found = await request("POST", "/api/identify?top=8", file); });
  $("enrol").hidden = !state.gallery || state.gallery.read_only || !state.found;
  if (!state.found) $("verdict").textContent = "This picture could not be searched.";
  draw();
}

function draw() {
  const threshold = Number($("threshold").value);
  $("threshold-value").textContent = threshold.toFixed(3);
  const matches = state.found ? state.found.matches : [];
  $("matches").replaceChildren(...matches.map((match) => {
    const picture = match.picture ? element("img", { src: match.picture, alt: "" }) : element("span", { className: "blank" });
    const bar = element("progress", { max: 1, value: Math.max(0, match.cosine) });
    const item = element("li", { className: match.cosine >= threshold ? "yes" : "no" }, picture,
      element("div", {}, element("div", { className: "who", textContent: match.identity }), bar),
      element("span", { className: "score", textContent: match.cosine.toFixed(3) }));
    return item;
  }));
  if (!state.found) return;
  const best = matches[0];
  const accepted = best && best.cosine >= threshold;
  $("verdict").textContent = accepted ? `${best.identity} (cosine ${best.cosine.toFixed(3)})` : "Unknown: nobody reaches the threshold.";
  $("verdict").className = `verdict ${accepted ? "yes" : "no"}`;
}

// ---------------------------------------------------------------- compare

async function compare(slot, file) {
  state.pair[slot] = file;
  const box = document.querySelector(`[data-slot="${slot}"]`);
  box.querySelector("img").src = URL.createObjectURL(file);
  box.querySelector("img").hidden = false;
  box.querySelector("span").hidden = true;
  if (!state.pair[0] || !state.pair[1]) return;
  await attempt(async () => {
    const found = await request("POST", `/api/compare?first=${state.pair[0].size}`, new Blob(state.pair));
    const threshold = state.gallery.threshold;
    const rate = found.far === null ? "" : ` About ${(100 * found.far).toPrecision(2)} % of pairs of different people are as similar.`;
    const same = threshold === null ? "" : found.cosine >= threshold ? "The same, by the gallery's threshold. " : "Not the same, by the gallery's threshold. ";
    $("comparison").textContent = `${same}Cosine ${found.cosine.toFixed(4)}.${rate}`;
  });
}

// ---------------------------------------------------------------- browse

async function load() {
  await attempt(async () => {
    state.gallery = await request("GET", "/api/gallery");
    const { name, threshold, why, identities, images } = state.gallery;
    document.title = `${name} · widemargin`;
    $("title").textContent = name;
    if (threshold !== null && !state.moved) $("threshold").value = threshold;
    $("why").textContent = threshold === null ? "The model has no calibration: set the threshold yourself." : `Calibrated: ${threshold.toFixed(3)} (${why}).`;
    $("names").replaceChildren(...identities.map((one) => element("option", { value: one.identity })));
    $("count").textContent = `${identities.length} identities, ${images} images`;
    browse();
    draw();
  });
}

function browse() {
  const word = $("filter").value.toLowerCase();
  const shown = state.gallery.identities.filter((one) => one.identity.toLowerCase().includes(word)).slice(0, 200);
  $("people").replaceChildren(...shown.map((one) => {
    const caption = element("figcaption", {}, `${one.identity} · ${one.images} image${one.images > 1 ? "s" : ""}`);
    const figure = element("figure", {}, element("img", { src: one.pictures[0] || "", alt: one.identity, loading: "lazy" }), caption);
    if (!state.gallery.read_only) {
      const button = element("button", { className: "button", textContent: "Remove" });
      button.addEventListener("click", () => attempt(async () => {
        if (!window.confirm(`Remove ${one.identity} and its ${one.images} pictures?`)) return;
        await request("DELETE", `/api/identities/${encodeURIComponent(one.identity)}`);
        await load();
      }));
      figure.append(button);
    }
    return figure;
  }));
}

// ---------------------------------------------------------------- events

function firstImage(files) {
  return [...files].find((file) => file.type.startsWith("image/"));
}

function accept(box, use) {
  for (const name of ["dragover", "dragleave", "drop"]) {
    box.addEventListener(name, (event) => {
      event.preventDefault();
      box.classList.toggle("over", name === "dragover");
      const file = name === "drop" && firstImage(event.dataTransfer.files);
      if (file) use(file);
    });
  }
  const input = box.querySelector("input");
  input.addEventListener("change", () => input.files[0] && use(input.files[0]));
  box.addEventListener("keydown", (event) => { if (event.key === "Enter") input.click(); });
}

accept($("drop"), identify);
$("camera").addEventListener("change", (event) => event.target.files[0] && identify(event.target.files[0]));
for (const box of document.querySelectorAll("[data-slot]")) accept(box, (file) => compare(Number(box.dataset.slot), file));
document.addEventListener("paste", (event) => {
  const file = firstImage(event.clipboardData.files);
  if (file) identify(file);
});
$("threshold").addEventListener("input", () => { state.moved = true; draw(); });
$("filter").addEventListener("input", browse);
$("enrol").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    const name = $("name").value.trim();
    const found = await request("POST", `/api/identities/${encodeURIComponent(name)}`, state.probe);
    await load();
    await identify(state.probe);
    say(found.added ? `Enrolled as ${name}, who has ${found.images} images now.` : found.notes.join(" "));
  });
});
for (const tab of document.querySelectorAll("nav button")) {
  tab.addEventListener("click", () => {
    for (const other of document.querySelectorAll("nav button")) {
      other.setAttribute("aria-selected", String(other === tab));
      $(other.dataset.view).hidden = other !== tab;
    }
  });
}
load();
