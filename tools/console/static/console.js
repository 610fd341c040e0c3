"use strict";
// "/" moves to the search field, as on many sites.
document.addEventListener("keydown", (event) => {
  const field = document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`);
  const isTyping = event.target.closest("input, textarea, select");
  if (field && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    field.focus();
  }
});

// On a phone the navigation is wider than the screen.
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest", behavior: "instant" });

// The live tail asks for new records every second while the page is visible.
const MOST_TAIL_ROWS = 500;
const tail = document.getElementById("tail");
if (tail) {
  const state = document.getElementById("tail-state");
  const pause = document.getElementById("pause");
  let after = tail.dataset.after;
  let isPaused = false;
  let seen = 0;

  const addRows = (html) => {
    // The server has escaped the contents; the policy of the page permits no script in them.
    const rows = document.createElement("template");
    rows.innerHTML = html;
    for (const row of rows.content.querySelectorAll("tr")) row.classList.add("fresh");
    tail.prepend(rows.content);
    while (tail.rows.length > MOST_TAIL_ROWS) tail.deleteRow(-1);
  };

  const poll = async () => {
    let delayMs = 1000;
    if (!isPaused && !document.hidden) {
      const query = new URLSearchParams({ after, filter: tail.dataset.filter, committed: tail.dataset.committed });
      try {
        const response = await fetch(`${tail.dataset.url}?${query}`, { headers: { Accept: "application/json" } });
        if (!response.ok) throw new Error(response.status === 401 ? "log in again" : `status ${response.status}`);
        const found = await response.json();
        after = found.after;
        seen += found.count;
        if (found.count) addRows(found.rows);
        if (found.count === 50) delayMs = 100;
        state.textContent = seen ? `${seen.toLocaleString("en")} records` : "Waiting for records";
      } catch (error) {
        state.textContent = `No answer (${error.message}); trying again`;
        delayMs = 3000;
      }
    }
    setTimeout(poll, delayMs);
  };

  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Continue" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
  });
  poll();
}
