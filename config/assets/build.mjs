// Copies the released files of package-lock.json to where they are kept, builds the stylesheet, joins the icons into one file,
// and leaves of the typeface what pages use of it.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import subsetFont from "subset-font";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "..", "..");
const released = (path) => join(here, "node_modules", path);

const COPIES = {
  "static/vendor/htmx": ["htmx.org/dist/htmx.min.js", "htmx.org/LICENSE"],
  "static/vendor/uplot": ["uplot/dist/uPlot.iife.min.js", "uplot/dist/uPlot.min.css", "uplot/LICENSE"],
  "static/vendor/inter": ["@fontsource-variable/inter/LICENSE"],
  "static/vendor/lucide": ["lucide-static/LICENSE"],
  "static/vendor/tailwindcss": ["tailwindcss/LICENSE"],
  "tests/browser/vendor/axe-core": ["axe-core/axe.min.js", "axe-core/LICENSE"],
};
for (const [folder, paths] of Object.entries(COPIES)) {
  mkdirSync(join(root, folder), { recursive: true });
  for (const path of paths) copyFileSync(released(path), join(root, folder, path.split("/").at(-1)));
}

// The first line names what it was built of: tests/architecture/test_stylesheet.py compares it, since CI has no Node.
const styles = join(here, "css");
const sources = readdirSync(styles).sort().map((name) => readFileSync(join(styles, name)));
const digest = createHash("sha256").update(Buffer.concat(sources)).digest("hex");
const css = execFileSync(released(".bin/tailwindcss"), ["--minify", "--input", join(styles, "portal.css")], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
mkdirSync(join(root, "static/css"), { recursive: true });
writeFileSync(join(root, "static/css/portal.css"), `/* Built by make assets of config/assets/css, sha256 ${digest} */\n${css}`);

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

// Every character of the Latin file, in the weights and with the features that the styles name; half of its bytes.
const WEIGHTS = { min: 400, max: 600 };
const FEATURES = ["kern", "calt", "ccmp", "locl", "mark", "mkmk", "tnum", "ss03", "cv11"];
const LATIN = [[0x20, 0x7e], [0xa0, 0xff], [0x131, 0x131], [0x152, 0x153], [0x2000, 0x206f], [0x20ac, 0x20ac], [0x2122, 0x2122], [0x2191, 0x2193], [0x2212, 0x2215]];
const characters = LATIN.flatMap(([first, last]) =>
  Array.from({ length: last - first + 1 }, (_, index) => String.fromCodePoint(first + index)),
);
const font = readFileSync(released("@fontsource-variable/inter/files/inter-latin-wght-normal.woff2"));
const options = { targetFormat: "woff2", variationAxes: { wght: WEIGHTS }, keepFeatures: FEATURES };
writeFileSync(join(root, "static/vendor/inter/inter-latin.woff2"), await subsetFont(font, characters.join(""), options));
