// Copies the released files of package-lock.json to where they are kept, and joins the icons into one file.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "..", "..");
const released = (path) => join(here, "node_modules", path);

const COPIES = {
  "static/vendor/htmx": ["htmx.org/dist/htmx.min.js", "htmx.org/LICENSE"],
  "static/vendor/uplot": ["uplot/dist/uPlot.iife.min.js", "uplot/dist/uPlot.min.css", "uplot/LICENSE"],
  "static/vendor/inter": [
    "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2",
    "@fontsource-variable/inter/LICENSE",
  ],
  "static/vendor/lucide": ["lucide-static/LICENSE"],
  "tests/browser/vendor/axe-core": ["axe-core/axe.min.js", "axe-core/LICENSE"],
};
for (const [folder, paths] of Object.entries(COPIES)) {
  mkdirSync(join(root, folder), { recursive: true });
  for (const path of paths) copyFileSync(released(path), join(root, folder, path.split("/").at(-1)));
}

// The sprite's first line, and a symbol for each name of icons.txt.
const ATTRIBUTES =
  'viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round"';
const symbol = (name) => {
  const source = readFileSync(released(`lucide-static/icons/${name}.svg`), "utf8");
  const shapes = source.replace(/<!--.*?-->/gs, "").replace(/^\s*<svg[^>]*>|<\/svg>\s*$/g, "");
  const lines = shapes.split("\n").map((line) => line.trim().replace(/ \/>$/, "/>"));
  return `<symbol id="${name}" ${ATTRIBUTES}>${lines.join("")}</symbol>\n`;
};
const names = readFileSync(join(here, "icons.txt"), "utf8").trim().split("\n").sort();
writeFileSync(
  join(root, "static/img/icons.svg"),
  "<!-- Icons of Lucide (ISC, see static/vendor/lucide/LICENSE), one symbol each. -->\n" +
    `<svg xmlns="http://www.w3.org/2000/svg">\n${names.map(symbol).join("")}</svg>\n`,
);
