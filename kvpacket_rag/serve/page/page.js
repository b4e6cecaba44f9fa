"use strict";
// The page uses only the server's public API. All text of documents and answers is inserted as text, never as markup.

const at = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const count = (n) => n.toLocaleString("en");
const seconds = (s) => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(2)} s`);
const KEY = "kvpacket-key";
let running = null;

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(options.body && !(options.body instanceof FormData) ? { "Content-Type": "application/json" } : {}),
    ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Refused(response.status, body.error?.message ?? `The server answered with status ${response.status}.`);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const body = JSON.parse(data);
      if (body.error) throw new Refused(200, body.error.message);
      yield body;
    }
  }
}

function complain(error) {
  if (error.name === "AbortError") return;
  at("unlock").hidden = error.status !== 401;
  at("problem").hidden = error.status === 401 && !sessionStorage.getItem(KEY);
  at("problem").textContent = error.message;
  if (error.status === 401) at("key").focus();
}

function quiet() { at("problem").hidden = true; at("unlock").hidden = true; }

// -- asking -------------------------------------------------------------------------------------------------

function request(question, method) {
  return JSON.stringify({ messages: [{ role: "user", content: question }], stream: true,
    kvpacket: { method, k: Number(at("k").value) || 4 } });
}

function figures(column, timings) {
  const first = timings ? seconds(timings.first_token) : "…";
  const total = timings ? seconds(timings.total) : "…";
  at(column).querySelector(".figures").replaceChildren(
    make("div", {}, make("dt", { textContent: "first token" }), make("dd", { textContent: first, className: "first" })),
    make("div", {}, make("dt", { textContent: "whole answer" }), make("dd", { textContent: total })));
}

function cost(column, usage) {
  const reused = usage.packet_tokens + usage.prefix_tokens, computed = usage.computed_tokens;
  const note = (number, what) => (number ? ` ${count(number)} ${number === 1 ? "packet was" : "packets were"} ${what}.` : "");
  const built = note(usage.packets_built, "not stored and had to be built") + note(usage.healed, "damaged and had to be rebuilt");
  const text = `${count(reused)} prompt tokens reused, ${count(computed)} computed.${built}`;
  const bar = at(column).querySelector(".tokens");
  bar.setAttribute("aria-label", text);
  bar.replaceChildren(make("i"), make("i", { className: "computed" }));
  bar.firstChild.style.flexGrow = reused;
  bar.lastChild.style.flexGrow = computed;
  at(column).querySelector(".cost").textContent = text;
}

function clear(column) {
  figures(column, null);
  at(column).querySelector(".answer").textContent = "";
  at(column).querySelector(".cost").textContent = "";
  at(column).querySelector(".tokens").replaceChildren();
}

async function answer(question, method, signal) {
  const text = at(method).querySelector(".answer");
  at(method).setAttribute("aria-busy", "true");
  let last = null;
  try {
    const response = await call("/v1/chat/completions", { method: "POST", body: request(question, method), signal });
    for await (const body of events(response)) {
      text.append(body.choices[0]?.delta?.content ?? "");
      last = body.kvpacket ?? last;
      if (body.choices[0]?.finish_reason == null && last && method === "packet") sources(last.sources);
    }
  } finally {
    at(method).setAttribute("aria-busy", "false");
  }
  figures(method, last.timings);
  cost(method, last.usage);
  if (!text.textContent.trim()) text.textContent = "(The model returned no answer.)";
  return last;
}

function sources(list) {
  at("sources").replaceChildren(...list.map((source) => make("li", {},
    make("details", {}, make("summary", { textContent: `${source.title || source.document} · score ${source.score.toFixed(2)}` }),
      make("p", { textContent: source.text })))));
}

async function prompt(question, signal) {
  const response = await call("/v1/prompt", { method: "POST", body: request(question, "packet"), signal });
  const names = { prefix: "Prefix", packet: "Packet", text: "Text", question: "Question" };
  at("prompt").replaceChildren(...(await response.json()).data.map((block) => {
    const what = `${names[block.kind]}${block.document ? ` of ${block.document}` : ""} · ${count(block.tokens)} tokens · ` +
      (block.reused ? "reused" : "computed");
    return make("li", {}, make("details", { className: block.reused ? "reused" : "computed" },
      make("summary", { textContent: what }), make("pre", { textContent: block.text })));
  }));
}

function verdict(packet, full) {
  const times = full.timings.first_token / packet.timings.first_token;
  const same = at("packet").querySelector(".answer").textContent === at("full").querySelector(".answer").textContent;
  at("verdict").textContent = `First token ${times >= 1 ? `${times.toFixed(1)} times faster` : "not faster"} from packets; ` +
    (same ? "the answers are the same." : "the answers differ.");
}

async function ask(event) {
  event.preventDefault();
  const question = at("question").value.trim();
  if (!question || running) return;
  running = new AbortController();
  const { signal } = running;
  quiet();
  at("answers").hidden = false;
  at("full").hidden = !at("compare").checked;
  at("verdict").textContent = "";
  for (const column of ["packet", "full"]) clear(column);
  for (const list of ["prompt", "sources"]) at(list).replaceChildren();
  at("go").disabled = true;
  at("stop").hidden = false;
  try {
    const packet = await answer(question, "packet", signal);
    await prompt(question, signal);
    if (at("compare").checked) verdict(packet, await answer(question, "full", signal));
  } catch (error) {
    complain(error);
  } finally {
    running = null;
    at("go").disabled = false;
    at("stop").hidden = true;
  }
}

// -- documents ----------------------------------------------------------------------------------------------

async function refresh() {
  const [models, documents, store] = await Promise.all(
    ["/v1/models", "/v1/documents", "/v1/store"].map(async (path) => (await call(path)).json()));
  const held = store.packet_bytes < 1e6 ? `${(store.packet_bytes / 1e3).toFixed(0)} kB` : `${count(Math.round(store.packet_bytes / 1e6))} MB`;
  at("about").textContent = `${models.data[0].id} · ${count(store.documents)} documents · ${count(store.packets)} packets of ` +
    `${count(store.packet_tokens)} tokens, ${held}`;
  at("documents").replaceChildren(...documents.data.map((one) => {
    const remove = make("button", { type: "button", textContent: "Remove" });
    remove.setAttribute("aria-label", `Remove ${one.id}`);
    remove.addEventListener("click", () => act(async () => {
      await call(`/v1/documents/${one.id.split("/").map(encodeURIComponent).join("/")}`, { method: "DELETE" });
      at("added").textContent = `Removed ${one.id}.`;
    }));
    return make("li", {}, make("span", { textContent: `${one.title || one.id} ` },
      make("small", { textContent: `${one.id} · ${count(one.chunks)} chunks` })), remove);
  }));
}

async function act(work) {
  quiet();
  try {
    await work();
    await refresh();
  } catch (error) {
    complain(error);
  }
}

async function add(files) {
  if (!files.length) return;
  const body = new FormData();
  for (const file of files) body.append("file", file);
  const bar = at("adding");
  bar.hidden = false;
  bar.removeAttribute("value");
  at("added").textContent = `Reading ${files.length === 1 ? files[0].name : `${files.length} files`} …`;
  await act(async () => {
    try {
      for await (const state of events(await call("/v1/files?stream=true", { method: "POST", body }))) {
        if (state.object === "documents.progress") {
          if (state.total) { bar.max = state.total; bar.value = state.documents; }
          at("added").textContent = `${count(state.chunks)} packets of ${count(state.tokens)} tokens …`;
        } else {
          at("added").textContent = `${count(state.added)} added, ${count(state.updated)} updated, ${count(state.unchanged)} unchanged. Built ` +
            `${count(state.packets_built)} packets of ${count(state.tokens_built)} tokens in ${seconds(state.seconds)}.`;
        }
      }
    } catch (error) {
      at("added").textContent = "";
      throw error;
    } finally {
      bar.hidden = true;
      at("files").value = "";
    }
  });
}

// -- wiring -------------------------------------------------------------------------------------------------

at("ask").addEventListener("submit", ask);
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("ask").requestSubmit(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
at("stop").addEventListener("click", () => running?.abort());
at("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value);
  at("key").value = "";
  act(async () => {});
});
at("files").addEventListener("change", () => add([...at("files").files]));
for (const [name, over] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
  at("drop").addEventListener(name, (event) => { event.preventDefault(); at("drop").classList.toggle("over", over); });
}
at("drop").addEventListener("drop", (event) => add([...event.dataTransfer.files]));
act(async () => {});
