// What the theme leaves undone. Every page works without it.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  // A box that scrolls sideways must be reachable by keyboard; one that does not is no stop.
  const reach = () => {
    for (const box of document.querySelectorAll(".katex-display, .claim table")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  reach();
  addEventListener("resize", reach);
  document.fonts.ready.then(reach); // formulas get their final width with their font

  // The ledger's filter obeys a link by itself; here its buttons also say what they show.
  const choose = () => {
    const linked = document.getElementById(location.hash.slice(1));
    if (linked?.matches(".ledger-choice input")) linked.checked = true;
    for (const group of document.querySelectorAll(".ledger-filter fieldset")) {
      if (!group.querySelector(":checked")) group.querySelector("input").checked = true;
    }
  };
  choose();
  addEventListener("hashchange", choose);

  document.querySelector(".print-page")?.addEventListener("click", () => print());

  // Paper is light and cannot be unfolded.
  const root = document.documentElement;
  let restore = [];
  addEventListener("beforeprint", () => {
    const theme = root.dataset.theme;
    const folded = [...document.querySelectorAll("article details:not([open])")];
    root.dataset.theme = "light";
    for (const details of folded) details.open = true;
    restore = [() => (root.dataset.theme = theme), ...folded.map((details) => () => (details.open = false))];
  });
  addEventListener("afterprint", () => {
    for (const step of restore) step();
    restore = [];
  });

  // The menu to take a page along closes like any other.
  const menu = document.querySelector(".take-along");
  if (menu) {
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
  }
});
