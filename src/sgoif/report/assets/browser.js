// What any page needs of the browser: colours, files, the clipboard and the keyboard.
const THEME = "sgoif/theme";

function colour(theme) {
  document.documentElement.dataset.theme = theme;
  find("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function chosenTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

function startColours(redraw = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => colour(chosenTheme() ?? (dark.matches ? "dark" : "light"));
  follow();
  dark.addEventListener("change", follow);
  find("theme").addEventListener("click", () => {
    keep(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    colour(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    redraw();
  });
}

// Hands a file to the person.
function saveFile(name, type, ...parts) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

async function copyCommand() {
  try {
    await navigator.clipboard.writeText(find("command").textContent);
    say("Copied.");
  } catch {
    getSelection().selectAllChildren(find("command"));
    say("Press Ctrl+C to copy the marked command.");
  }
}

// The letter of a key, on keyboards that write another script too.
function letterOf(event) {
  if (event.key.length > 1) return event.key;
  const latin = /^[\x20-\x7e]$/.test(event.key) ? event.key : /^Key([A-Z])$/.exec(event.code)?.[1];
  return (latin ?? event.key).toLowerCase();
}

const plain = (text) => (/^[\x00-\x7f]*$/.test(text) ? text : text.normalize("NFD").replace(/\p{M}/gu, "")).toLowerCase();
