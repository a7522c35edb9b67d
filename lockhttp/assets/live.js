"use strict";
// Keeps the part of the page that changes up to date: by events of the server, or where
// they don't come through, by asking again and again. Without this the page is a still one.
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("state");
  const said = document.getElementById("said");
  const pause = document.getElementById("pause");
  if (!live.firstElementChild) return;

  const lost = document.getElementById("lost");
  let source = null, timer = 0, polling = false, paused = false, spoken = 0, failures = 0, seen = Date.now();

  // patch makes a node like another one, and leaves what is equal as it is: so the focus,
  // a selection, an open <details> and what somebody types stay.
  const patch = (from, to) => {
    if (from.nodeType !== 1) {
      if (from.data !== to.data) from.data = to.data;
      return;
    }
    for (const a of [...from.attributes]) {
      if (!to.hasAttribute(a.name) && a.name !== "open") from.removeAttribute(a.name);
    }
    for (const a of to.attributes) {
      if (from.getAttribute(a.name) !== a.value) from.setAttribute(a.name, a.value);
    }
    patchChildren(from, to);
  };
  // remove returns what comes after.
  const remove = (node) => {
    const next = node.nextSibling;
    node.remove();
    return next;
  };
  const patchChildren = (from, to) => {
    const named = new Map();
    for (const c of from.children) if (c.id) named.set(c.id, c);
    const stays = new Set();
    for (const c of to.children) if (named.has(c.id)) stays.add(named.get(c.id));
    let at = from.firstChild;
    for (const want of [...to.childNodes]) {
      const same = want.id ? named.get(want.id) : at && !at.id && at.nodeName === want.nodeName ? at : null;
      if (!same) {
        from.insertBefore(want, at);
        continue;
      }
      named.delete(want.id);
      while (at !== same && !stays.has(at)) at = remove(at); // what is moved loses the focus
      if (same === at) at = at.nextSibling;
      else from.insertBefore(same, at);
      patch(same, want);
    }
    while (at) at = remove(at);
  };

  const show = (html) => {
    if (paused) return;
    const next = document.createElement("template");
    next.innerHTML = html;
    const trim = document.createElement("div");
    trim.append(next.content);
    patchChildren(live, trim);
    seen = Date.now();
    say();
  };

  // say tells screen readers what has changed, at most every ten seconds.
  const say = () => {
    const summary = document.getElementById("summary");
    const now = Date.now();
    if (!summary || now - spoken < 10000 || said.textContent === summary.textContent) return;
    said.textContent = summary.textContent;
    spoken = now;
  };

  const tell = (text) => {
    if (state.textContent !== text) state.textContent = text;
    age();
  };

  // age says of what isn't live how old it is: a page that stands still looks like one that is.
  const age = () => {
    const old = Math.round((Date.now() - seen) / 1000);
    const gone = state.textContent === "Not connected" || (!paused && !document.hidden && old > 15);
    lost.hidden = !gone;
    live.classList.toggle("old", gone);
    if (gone) lost.lastElementChild.textContent = `What is below was seen ${old} s ago.`;
  };
  setInterval(age, 1000);

  const stop = () => {
    if (source) source.close();
    source = null;
    clearTimeout(timer);
  };

  const poll = async () => {
    const address = new URL(location.href);
    address.searchParams.set("format", "fragment");
    try {
      const answer = await fetch(address, { signal: AbortSignal.timeout(15000) });
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.text());
      tell("Live, every 2 seconds");
    } catch {
      tell("Not connected");
    }
    if (polling && !paused && !document.hidden) timer = setTimeout(poll, 2000);
  };

  const fallBack = () => {
    stop();
    polling = true;
    poll();
  };

  const start = () => {
    stop();
    if (paused || document.hidden) return;
    if (polling || !window.EventSource) return fallBack();
    tell("Connecting");
    source = new EventSource(location.href);
    timer = setTimeout(fallBack, 8000); // a proxy may keep events back
    source.onmessage = (e) => {
      clearTimeout(timer);
      failures = 0;
      tell("Live");
      show(e.data);
    };
    source.onerror = () => {
      clearTimeout(timer);
      tell("Not connected");
      failures++;
      if (source.readyState === EventSource.CLOSED || failures > 3) fallBack();
    };
  };

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) {
      stop();
      tell("Paused");
    } else {
      start();
    }
  });
  document.addEventListener("visibilitychange", start);
  start();
})();
