// The console's one script. It only adds comfort: every page, form and link works without it.
// The server decides everything; nothing here holds state that matters.
(() => {
  "use strict";

  const root = document.documentElement;
  const status = () => document.getElementById("status");

  // ---- Relative times: the same rules as agentops/console/times.py, on the server's clock and zone. ----
  const skew = Date.parse(root.dataset.now) - Date.now();
  const zone = root.dataset.zone || "UTC";
  const parts = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone, year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
  });
  const local = (ms) => Object.fromEntries(parts.formatToParts(ms).map((part) => [part.type, part.value]));
  const dayNumber = (ms) => {
    const { year, month, day } = local(ms);
    return Date.parse(`${day} ${month} ${year} UTC`) / 86_400_000;
  };

  function distance(ms) {
    const seconds = Math.floor(Math.abs(ms) / 1000);
    if (seconds < 1) return "now";
    const size = seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min`;
    return ms < 0 ? `${size} ago` : `in ${size}`;
  }

  function moment(at, now) {
    if (Math.abs(at - now) < 3_600_000) return distance(at - now);
    const { year, month, day, hour, minute } = local(at);
    const days = dayNumber(at) - dayNumber(now);
    const word = { "-1": "yesterday", 0: "today", 1: "tomorrow" }[days];
    if (word) return `${word} ${hour}:${minute}`;
    return year === local(now).year ? `${day} ${month.slice(0, 3)} ${hour}:${minute}` : `${day} ${month.slice(0, 3)} ${year}`;
  }

  function renewTimes() {
    const now = Date.now() + skew;
    for (const time of document.querySelectorAll("time[data-renew]")) {
      const at = Date.parse(time.dateTime);
      const text = moment(time.dataset.renew === "due" ? Math.max(at, now) : at, now);
      if (time.textContent !== text) time.textContent = text;
      time.classList.toggle("late", time.dataset.renew === "deadline" && at < now);
    }
  }
  setInterval(() => document.hidden || renewTimes(), 1000);

  // ---- The one status line: what a request could not do. ----
  // What a poll ran into goes away with the next answer; what an action ran into stays until the next action.
  let reportedByPoll = false;
  const isPoll = (ctx) => ctx?.sourceEvent?.type === "every";

  function report(text, { link, poll = false } = {}) {
    const line = status();
    if (!line) return;
    reportedByPoll = poll;
    line.replaceChildren(document.createTextNode(text));
    if (link) {
      const anchor = document.createElement("a");
      anchor.href = link.href;
      anchor.textContent = link.text;
      line.append(" ", anchor);
    }
  }
  const clearReport = () => status()?.replaceChildren();

  const sentences = {
    400: "The server did not understand that. Nothing was done.",
    403: "You may not do that. Nothing was done.",
    404: "That is no longer here.",
    409: "This had changed meanwhile, so nothing was done. You see the fresh view.",
    429: "Too many requests. Wait a moment.",
  };

  document.addEventListener("htmx:response:error", ({ detail: { ctx } }) => {
    const code = ctx.response.status;
    if (isPoll(ctx)) setLost(true);
    const said = ctx.response.headers.get("Content-Type")?.startsWith("text/plain") ? ctx.text.slice(0, 300) : "";
    if (code === 401) {
      const here = encodeURIComponent(location.pathname + location.search);
      const link = { href: `${root.dataset.signIn}?next=${here}`, text: "Sign in" };
      report("You are signed out; what you see is no longer renewed.", { link, poll: isPoll(ctx) });
    } else {
      report(said || sentences[code] || `The server failed (${code}).`, { poll: isPoll(ctx) });
    }
  });
  document.addEventListener("htmx:error", ({ detail: { ctx } }) => {
    if (!ctx) return;
    if (isPoll(ctx)) setLost(true);
    report("The server cannot be reached. What you see may be old.", { poll: isPoll(ctx) });
  });
  document.addEventListener("htmx:after:request", ({ detail: { ctx } }) => {
    if (ctx.response.status >= 400) return;
    if (isPoll(ctx)) setLost(false);
    if (reportedByPoll || !isPoll(ctx)) clearReport();
  });

  // ---- Live or paused; nothing is asked for in a hidden tab. ----
  const polls = () => document.querySelectorAll('[hx-trigger^="every"]');
  const paused = () => sessionStorage.getItem("paused") === "yes";
  // The last poll was not answered: the page is not renewed, whatever the switch says.
  let lost = false;
  function setLost(now) {
    lost = now;
    showLive();
  }

  function showLive() {
    root.dataset.live = paused() ? "paused" : lost ? "lost" : "on";
    for (const button of document.querySelectorAll("[data-live-switch]")) {
      button.hidden = polls().length === 0;
      button.setAttribute("aria-pressed", String(!paused()));
      button.querySelector("[data-word]").textContent = paused() ? "Paused" : lost ? "Not live" : "Live";
    }
  }
  function pollNow() {
    for (const element of polls()) htmx.trigger(element, "every", {}, false);
  }
  document.addEventListener("htmx:config:request", (event) => {
    if (isPoll(event.detail.ctx) && (paused() || document.hidden)) event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    renewTimes();
    if (!paused()) pollNow();
  });

  // ---- Focus: after an action took its own control away, the result is the next thing to read. ----
  function focusResult(within) {
    const result = within.querySelector("[data-result]");
    if (result) result.focus();
  }
  // What a verb did is old news once the run has come to a stand again: "goes on" above "Failed" would be a lie.
  const stands = () => document.querySelector("[data-stands]") !== null;
  let stood = stands();
  function dropOldResult() {
    if (stands() && !stood) for (const note of document.querySelectorAll("main .note.is-ok[tabindex]")) note.remove();
    stood = stands();
  }
  document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
    renewTimes();
    showLive();
    dropOldResult();
    if (!isPoll(ctx)) focusResult(document);
  });

  // An open <details> is the reader's choice: renewing a region keeps it (htmx: morphIgnore "open").

  // ---- Clicks: copy, live, theme; an open menu closes when the click goes elsewhere. ----
  async function copy(button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      report(`Copied ${button.dataset.copy}`);
    } catch {
      report("The browser does not allow copying here.");
    }
    setTimeout(clearReport, 3000);
  }
  function chooseTheme(theme) {
    const secure = location.protocol === "https:" ? ";secure" : "";
    document.cookie = `theme=${theme};path=/;max-age=31536000;samesite=lax${secure}`;
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.value === theme));
    }
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.copy !== undefined) copy(button);
    if (button?.dataset.liveSwitch !== undefined) {
      sessionStorage.setItem("paused", paused() ? "no" : "yes");
      showLive();
      if (!paused()) pollNow();
    }
    if (button?.dataset.themeChoice !== undefined) {
      event.preventDefault();
      chooseTheme(button.value);
    }
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  // ---- Keys: / goes to the search, Escape closes a menu. ----
  const WRITTEN_IN = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.(WRITTEN_IN);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = [...document.querySelectorAll("[data-search]")].find((input) => input.checkVisibility());
      if (search) {
        event.preventDefault();
        search.focus();
      }
    }
    if (event.key === "Escape") {
      for (const menu of document.querySelectorAll("details.menu[open]")) {
        menu.open = false;
        menu.querySelector("summary").focus();
      }
    }
  });

  // ---- Keys of the inbox: a key is written beside the control that it stands for (data-key). ----
  // A link is followed and a form of one button is sent; what decides is only gone to (data-goes), and Enter presses it. Where
  // words are needed (data-writes), the key goes to the field, and Enter there presses the button that the key belongs to.
  let writing = null;
  function writes(button) {
    writing = button && { field: button.dataset.writes, key: button.dataset.key };
    if (writing) root.dataset.writing = writing.key;
    else delete root.dataset.writing;
  }
  const shown = (key) => [...document.querySelectorAll(`[data-key="${CSS.escape(key)}"]`)].find((one) => one.checkVisibility());

  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
    if (target.closest?.(WRITTEN_IN)) {
      if (key === "Escape") {
        writes(null);
        target.blur();
      }
      if (key === "Enter" && writing && target.id === writing.field) {
        event.preventDefault();
        const button = shown(writing.key);
        writes(null);
        button?.form?.requestSubmit(button);
      }
      return;
    }
    if (!plain || event.defaultPrevented || event.repeat || key.length !== 1) return;
    const control = shown(key);
    if (!control) return;
    event.preventDefault();
    if (control.dataset.writes) {
      document.getElementById(control.dataset.writes)?.focus();
      writes(control);
    } else if (control.dataset.goes !== undefined) {
      control.scrollIntoView({ block: "nearest" });
      control.focus({ focusVisible: true });
    } else {
      control.click();
      const menu = control.closest("details.menu[open]");
      menu?.querySelector("button, a")?.focus();
      if (control.hash && control.pathname === location.pathname) document.querySelector(control.hash)?.focus();
    }
  });
  document.addEventListener("focusout", () => writes(null));

  // ---- What is chosen in the inbox (x) stays chosen while one goes from item to item in this tab, until it is decided. ----
  const CHOSEN = "chosen";
  const chosen = () => new Set(JSON.parse(sessionStorage.getItem(CHOSEN) ?? "[]"));
  const choose = (ids) => sessionStorage.setItem(CHOSEN, JSON.stringify([...ids]));
  const boxes = () => document.querySelectorAll('.inbox-list input[name="id"]');

  function showChosen() {
    if (document.querySelector("[data-ticks-used]")) choose([]);
    const bar = document.querySelector(".tick-bar");
    if (!bar) return;
    const ids = chosen();
    for (const box of boxes()) box.checked = ids.delete(box.value);
    // What stands on another page of the list goes with the form unseen.
    for (const id of ids) {
      const box = Object.assign(document.createElement("input"), { type: "checkbox", name: "id", value: id, checked: true });
      box.className = "elsewhere";
      box.tabIndex = -1;
      box.setAttribute("aria-hidden", "true");
      bar.append(box);
    }
  }
  document.addEventListener("change", ({ target }) => {
    if (!target.matches('.inbox-list input[name="id"]')) return;
    const ids = chosen();
    if (target.checked) ids.add(target.value);
    else ids.delete(target.value);
    choose(ids);
  });
  document.addEventListener("reset", ({ target }) => {
    if (!target.querySelector(".tick-bar")) return;
    choose([]);
    for (const box of target.querySelectorAll(".elsewhere")) box.remove();
  });
  document.addEventListener("htmx:after:swap", showChosen);

  // ---- The title says how much waits, also while the list is renewed. ----
  function countInTitle() {
    const list = document.querySelector("[data-waiting]");
    if (!list) return;
    const rest = document.title.replace(/^\([\d,]+\+?\) /, "");
    document.title = list.dataset.waiting ? `(${list.dataset.waiting}) ${rest}` : rest;
  }
  document.addEventListener("htmx:after:swap", countInTitle);

  // ---- A form is sent once: a second press while the first is on its way does nothing. ----
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || form.hasAttribute("hx-post")) return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
  addEventListener("pageshow", (event) => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
    showChosen();
    if (event.persisted && !paused()) pollNow();
  });

  renewTimes();
  showLive();
  showChosen();
  focusResult(document);
})();
