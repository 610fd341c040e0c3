"""Checks that hold for every page of the console: it fits its window, its text has contrast, its fields have labels.

With ODRADEK_SCREENSHOTS=FOLDER each checked page is written there as PNG, in each of `VIEWS`, for a review by eye.
"""

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from compat_tests.tools.console.chromium import Chromium

_SCREENSHOTS: Final = os.environ.get("ODRADEK_SCREENSHOTS")


class View(NamedTuple):
    """A window."""

    name: str
    width: int
    height: int
    is_dark: bool


LIGHT: Final = View("light", 1200, 800, False)
DARK: Final = View("dark", 1200, 800, True)
PHONE: Final = View("phone", 360, 740, False)
DARK_PHONE: Final = View("dark-phone", 360, 740, True)
VIEWS: Final = (LIGHT, DARK, PHONE, DARK_PHONE)

_MOST_TABS: Final = 80

_FIND_PROBLEMS: Final = """(() => {
  const problems = [];
  const parse = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\\d.]+/g).map(Number);
    return [red, green, blue, alpha];
  };
  const mix = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
  const find_background = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((under, top) => mix(top, under), [255, 255, 255, 1]);
  };
  const luminance = (color) => {
    const [red, green, blue] = color.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (first, second) => {
    const [high, low] = [luminance(first), luminance(second)].sort((left, right) => right - left);
    return (high + 0.05) / (low + 0.05);
  };
  const measure = (element, color, text) => {
    const background = find_background(element);
    const ratio = contrast(mix(parse(color), background), background);
    if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(1)} of ${text.slice(0, 40)}`);
  };
  const page_width = document.documentElement.scrollWidth;
  if (page_width > innerWidth) problems.push(`the page is ${page_width} px wide in a window of ${innerWidth} px`);
  for (const region of document.querySelectorAll(".table:has(.stacked)")) {
    const isWider = innerWidth < 640 && region.scrollWidth > region.clientWidth;
    if (isWider) problems.push(`the table ${region.ariaLabel} is wider than the page`);
  }
  for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!field.labels.length && !field.ariaLabel) problems.push(`the field ${field.name} has no label`);
    const background = find_background(field.parentElement);
    const border = contrast(mix(parse(getComputedStyle(field).borderTopColor), background), background);
    if (border < 3) problems.push(`contrast ${border.toFixed(1)} of the border of ${field.name}`);
    if (field.placeholder) measure(field, getComputedStyle(field, "::placeholder").color, field.placeholder);
  }
  const names = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(names).size < names.length) problems.push("an id is not unique");
  if (document.querySelectorAll("h1").length !== 1) problems.push("the page has not one heading");
  for (const link of document.querySelectorAll("a, button, summary")) {
    if (!link.textContent.trim() && !link.ariaLabel) problems.push(`a link or button has no name: ${link.outerHTML}`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim();
    const element = texts.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest("option, meter")) continue;
    measure(element, getComputedStyle(element).color, text);
  }
  return problems;
})()"""

_FIND_FOCUS: Final = """(() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const place = element.getBoundingClientRect();
  const left = Math.max(place.left, 0), right = Math.min(place.right, innerWidth);
  const top = Math.max(place.top, 0), bottom = Math.min(place.bottom, innerHeight);
  const found = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
  const isShown = left < right && top < bottom && (element.contains(found) || element.getClientRects().length > 1);
  const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return {
    is_marked: element.matches(":focus-visible") && isMarked,
    is_shown: isShown,
    element: element.outerHTML.slice(0, 200),
  };
})()"""


def check_page(browser: Chromium, url: str, name: str, views: tuple[View, ...] = (LIGHT, DARK_PHONE)) -> None:
    """Open a page, and assert that it has none of the problems above in each of the views."""
    browser.open(url)
    check_opened_page(browser, name, views)


def check_opened_page(browser: Chromium, name: str, views: tuple[View, ...] = (LIGHT, DARK_PHONE)) -> None:
    """Assert that the opened page has none of the problems above."""
    for view in VIEWS if _SCREENSHOTS else views:
        browser.resize(view.width, view.height, is_dark=view.is_dark)
        problems = browser.run(_FIND_PROBLEMS)
        if _SCREENSHOTS:
            Path(_SCREENSHOTS, f"{name}-{view.name}.png").write_bytes(browser.take_screenshot(is_whole=True))
        assert problems == [], (name, view.name)
    assert browser.messages == [], name
    browser.resize(LIGHT.width, LIGHT.height)


def tab_to(browser: Chromium, selector: str, *, is_back: bool = False) -> list[str]:
    """Press Tab until an element has the focus; each on the way must show it. Return the texts of those elements."""
    passed = []
    for _ in range(_MOST_TABS):
        browser.press("Tab", is_shifted=is_back)
        focus: dict[str, Any] = browser.run(_FIND_FOCUS)
        assert focus["is_marked"] and focus["is_shown"], focus
        passed.append(browser.run("document.activeElement.innerText || document.activeElement.name || ''").strip())
        if browser.run(f"document.activeElement.matches({selector!r})"):
            return passed
    raise AssertionError(f"Tab does not reach {selector}: {passed}")


def read_rows(browser: Chromium, label: str) -> list[list[str]]:
    """Return the texts in the cells of the body of a table, by the label of its region."""
    rows = f"[...document.querySelectorAll('[aria-label=\"{label}\"] tbody tr')]"
    found: list[list[str]] = browser.run(f"{rows}.map(row => [...row.cells].map(cell => cell.innerText.trim()))")
    return found
