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
