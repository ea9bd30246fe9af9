"use strict";
const $ = (id) => document.getElementById(id);
const state = { gallery: null, probe: null, found: null, pair: [null, null] };

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
  if (text) $("message").scrollIntoView({ block: "nearest" });
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

function percent(cosine) {
  return `${100 * Math.min(1, Math.max(0, cosine))}%`;
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

// The rate at which a stranger passes a threshold, from the calibrated rates of one comparison: interpolated on their
// logarithm, and a bound beyond the first and the last.
function strangerRate(threshold) {
  const { rates, comparisons } = state.gallery;
  const last = rates.length - 1;
  const above = rates.findIndex((point) => point.cosine >= threshold);
  const [low, high] = [rates[Math.max(0, above - 1)], rates[above < 0 ? last : above]];
  const share = high.cosine > low.cosine ? (threshold - low.cosine) / (high.cosine - low.cosine) : 1;
  const far = Math.exp(Math.log(low.far) + Math.max(0, Math.min(1, share)) * (Math.log(high.far) - Math.log(low.far)));
  const rate = -Math.expm1(comparisons * Math.log1p(-far));
  const bound = above < 0 ? "less than " : above === 0 && threshold < rates[0].cosine ? "more than " : "";
  return `${bound}${Number((100 * rate).toPrecision(2))} %`;
}

function explainThreshold(threshold) {
  if (!state.gallery) return "";
  if (state.gallery.threshold === null) return "The model has no calibration: set the threshold yourself.";
  if (Math.abs(threshold - state.gallery.threshold) < 0.001) return `Calibrated: ${state.gallery.why}.`;
  return `Here ${strangerRate(threshold)} of strangers would pass, by the calibration; at ${state.gallery.threshold.toFixed(3)} ${state.gallery.why}.`;
}

function draw() {
  const threshold = Number($("threshold").value);
  $("threshold-value").textContent = threshold.toFixed(3);
  $("why").textContent = explainThreshold(threshold);
  const matches = state.found ? state.found.matches : [];
  $("matches").replaceChildren(...matches.map((match) => {
    const picture = match.picture ? element("img", { src: match.picture, alt: "" }) : element("span", { className: "blank" });
    const bar = element("div", { className: "bar" }, element("i"), element("b"));
    bar.firstChild.style.width = percent(match.cosine);
    bar.lastChild.style.left = percent(threshold);
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
    const rate = found.far === null ? "" : ` ${Number((100 * found.far).toPrecision(2))} % of pairs of different identities are as similar.`;
    const from = found.same === null ? "" : ` (a pair is accepted from ${found.threshold.toFixed(3)} on)`;
    const verdict = found.same === null ? "" : found.same ? "The same identity. " : "Different identities. ";
    $("comparison").textContent = `${verdict}Cosine ${found.cosine.toFixed(4)}${from}.${rate}`;
    $("comparison").className = `verdict ${found.same === null ? "" : found.same ? "yes" : "no"}`;
  });
}

// ---------------------------------------------------------------- browse

async function load() {
  await attempt(async () => {
    const word = $("filter").value;
    const gallery = await request("GET", `/api/gallery?search=${encodeURIComponent(word)}`);
    if (word !== $("filter").value) return; // typed on meanwhile: a later answer comes
    state.gallery = gallery;
    document.title = `${gallery.name} · widemargin`;
    $("title").textContent = gallery.name;
    if (gallery.threshold !== null && !state.moved) {
      $("threshold").min = Math.min(0, gallery.threshold);
      $("threshold").value = gallery.threshold;
    }
    browse();
    draw();
  });
}

function browse() {
  const { identities, images, num_identities: total, num_matching: matching } = state.gallery;
  const shown = identities.length < matching ? `, the first ${identities.length} shown` : "";
  const listed = matching < total ? `; ${matching} match` : "";
  $("count").textContent = `${total} identities, ${images} images${listed}${shown}`;
  $("names").replaceChildren(...identities.map((one) => element("option", { value: one.identity })));
  $("people").replaceChildren(...identities.map((one) => {
    const caption = element("figcaption", {}, element("b", {}, one.identity), element("br"), `${one.images} image${one.images > 1 ? "s" : ""}`);
    const some = one.pictures.slice(0, one.pictures.length < 4 ? 1 : 4);
    const pictures = some.map((src) => element("img", { src, alt: one.identity, loading: "lazy" }));
    const figure = element("figure", {}, element("div", { className: some.length > 1 ? "pictures" : "pictures single" }, ...pictures), caption);
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
$("filter").addEventListener("input", load);
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
