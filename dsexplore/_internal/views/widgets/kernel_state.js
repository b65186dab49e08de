// What the kernel does with a widget's choices, said above the widget. Each message to the kernel bears a number, and the
// kernel sends the number back with all that follows from the message (part_widgets.py). Callbacks would not do:
// ipywidgets sends one message at a time, joins those that wait, and forgets their callbacks. An answer that takes longer
// than LATE is said to be late; when the kernel has ended (JupyterLab's says so), what was chosen and not answered is
// taken back: the parts of the widget then agree with one another again.
const LATE = 1000; // milliseconds
const ENDED = ["dead", "terminating", "restarting", "autorestarting"];
const BUSY = "The kernel is busy: your choice is not shown below yet. It will be when the kernel comes to it.";
const GONE = "The kernel that answered here has ended: nothing below follows a choice any more. Run the cell again.";

export function watchKernel(model, el) {
  const line = document.createElement("div");
  line.className = "dsx-state";
  line.setAttribute("role", "alert");
  el.append(line);
  const kernel = () => (model.widget_manager || {}).kernel, followed = kernel();
  const showTwin = hideTwin(el);
  // Numbers begin anywhere: a second view of the same model, in another window, counts for itself.
  let number = Math.floor(Math.random() * 2 ** 48), late = 0, gone = false, heard = Boolean(followed);
  // What is not answered yet, the oldest first: its number, whether it changed the model's state, the values before.
  let waiting = [], before = [];
  line.dataset.waiting = 0;

  function say(text) {
    if (line.textContent === text) return;
    line.textContent = text;
    el.classList.toggle("dsx-late", Boolean(text));
    for (const part of el.querySelectorAll("[data-follows]")) part.setAttribute("aria-busy", Boolean(text) && !gone);
  }
  function answered() {
    heard = true;
    const found = waiting.find(({ asked }) => asked === model.get("answered"));
    if (!found) return;
    // States come in their order, the last of those that were joined with its number alone; so do other messages.
    waiting = waiting.filter(({ asked, isState }) => asked > found.asked || isState !== found.isState);
    line.dataset.waiting = waiting.length;
    if (waiting.length) return;
    clearTimeout(late);
    if (!gone) say("");
  }
  function end() {
    if (gone) return;
    gone = true;
    clearTimeout(late);
    for (const [name, value] of [...waiting.flatMap((each) => each.before), ...before].reverse()) model.set(name, value);
    waiting = before = [];
    el.classList.add("dsx-gone");
    say(GONE);
    disable();
  }
  function disable() {
    if (gone) for (const control of el.querySelectorAll("[data-asks]")) control.disabled = true;
  }
  // The number of a message that is to be sent; 0 once nobody answers.
  function ask(isState) {
    const now = kernel();
    if (followed && (!now || now.isDisposed || ENDED.includes(now.status))) end();
    if (gone) return 0;
    number += 1;
    waiting.push({ asked: number, isState, before: isState ? before : [] });
    if (isState) before = [];
    line.dataset.waiting = waiting.length;
    clearTimeout(late);
    // A page whose messages were never answered is one where answers are not seen, and says nothing of them.
    late = setTimeout(() => { if (heard && waiting.length) say(BUSY); }, LATE);
    return number;
  }
  const changed = () => { if (followed.isDisposed || ENDED.includes(followed.status)) end(); };
  for (const signal of ["statusChanged", "disposed"]) if (followed && followed[signal]) followed[signal].connect(changed);
  model.on("change:answered", answered);
  return {
    model: {
      get: (name) => model.get(name),
      set(name, value) {
        if (gone) return;
        before.push([name, model.get(name)]);
        model.set(name, value);
      },
      on: (name, listener) => model.on(name, listener),
      off: (name, listener) => model.off(name, listener),
      save_changes(callbacks) {
        const asked = ask(true);
        if (!asked) return;
        model.set("asked", asked);
        model.save_changes(callbacks);
      },
      send(content, callbacks) {
        const asked = ask(false);
        if (asked) model.send({ ...content, asked }, callbacks);
      },
      // A message that nothing follows from.
      tell: (content) => { if (!gone) model.send(content); },
    },
    part: {
      names: [], show: disable,
      end() {
        clearTimeout(late);
        showTwin();
        model.off("change:answered", answered);
        for (const signal of ["statusChanged", "disposed"]) if (followed && followed[signal]) followed[signal].disconnect(changed);
      },
    },
  };
}

// A live view stands right behind its static twin, and hides it. Where outputs are siblings as in JupyterLab, the rule in
// live.py does so as soon as the class is there; elsewhere this does, once the view is in the page.
function hideTwin(el) {
  el.classList.add("dsx-live");
  let twin = null;
  const seen = new ResizeObserver(() => {
    if (!el.isConnected) return;
    seen.disconnect();
    if (!el.closest(".jp-OutputArea-child")) twin = twinBefore(el);
    if (twin) twin.style.display = "none";
  });
  seen.observe(el);
  return () => {
    seen.disconnect();
    if (twin) twin.style.display = "";
  };
}

// The twin that nothing but the view follows, or the view that this one is a part of.
function twinBefore(el) {
  const view = [...document.getElementsByClassName("dsx-live")].find((each) => each.contains(el)), between = document.createRange();
  const before = (twin) => twin.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING;
  const last = [...document.getElementsByClassName("dsx-twin")].filter(before).at(-1);
  if (!last || !view) return null;
  between.setStartAfter(last);
  between.setEndBefore(view);
  return between.toString().trim() ? null : last;
}
