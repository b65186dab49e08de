"""CSS that all static views and widgets share.

Light or dark follows the surroundings: JupyterLab's variables, else VS Code's, else the page's color scheme.
"""

from __future__ import annotations

from dsexplore._internal.views.page.theme import AXES, SHADE, Mark

VARIABLES = f"""
.dsx,.dsx-tree,.dsx-explorer,.dsx-plot,.dsx-timeline,.dsx-state{{
--dsx-fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,CanvasText));
--dsx-bg:var(--jp-layout-color0,var(--vscode-editor-background,Canvas));
--dsx-line:color-mix(in srgb,var(--dsx-fg) 22%,transparent);
--dsx-dim:color-mix(in srgb,var(--dsx-fg) 68%,var(--dsx-bg));
--dsx-shade:color-mix(in srgb,var(--dsx-fg) 6%,transparent);
--dsx-link:var(--jp-content-link-color,var(--vscode-textLink-foreground,LinkText));
--dsx-focus:var(--jp-brand-color1,var(--vscode-focusBorder,{SHADE}));
--dsx-font:var(--jp-ui-font-family,var(--vscode-font-family,system-ui,sans-serif));
--dsx-mono:var(--jp-code-font-family,var(--vscode-editor-font-family,ui-monospace,monospace));
--dsx-size:calc(var(--jp-content-font-size1,var(--dsx-page,14px))*13/14);
--dsx-small:calc(var(--dsx-size)*12/13);--dsx-tiny:calc(var(--dsx-size)*11/13)}}
:is(.dsx,.dsx-tree,.dsx-explorer) *{{box-sizing:border-box}}
:is(.dsx,.dsx-tree,.dsx-explorer) :focus-visible{{outline:2px solid var(--dsx-focus);outline-offset:-2px}}
"""
"""CSS variables that all other rules use, and the rules for box sizes and for the focus.

The size of text follows JupyterLab's content (13 pixels where JupyterLab sets 14), or the browser in a standalone page.
"""


BASE = """
.dsx{color:var(--dsx-fg);background:var(--dsx-bg);font:var(--dsx-size)/1.45 var(--dsx-font);max-width:100%;
text-align:left}
.dsx p,.dsx.dsx h2{margin:.3em 0;font-size:inherit;overflow-wrap:break-word}
.dsx.dsx h2{font-weight:600}
.dsx .dim{color:var(--dsx-dim)}
.dsx.dsx .verdict{font-weight:600;font-size:calc(var(--dsx-size)*15/13);max-width:1000px;overflow-wrap:anywhere}
.dsx .verdict .to{font-weight:400}
.dsx .how>summary{display:inline-block;min-width:1.5em;text-align:center;border:1px solid var(--dsx-dim);
border-radius:1em}
.dsx .how>summary::-webkit-details-marker{display:none}
.dsx .scroll{overflow-x:auto;max-width:100%}
.dsx .scroll::-webkit-scrollbar{height:9px}
.dsx .scroll::-webkit-scrollbar-thumb{background:var(--dsx-dim);border-radius:5px;forced-color-adjust:none}
.dsx.dsx.dsx code,.dsx .mono{font-family:var(--dsx-mono);font-size:var(--dsx-small);background:none;color:inherit;
padding:0}
.dsx summary{cursor:pointer}
.dsx.dsx table{border-collapse:collapse;margin:.2em 0;color:inherit;font-size:var(--dsx-small);width:auto;border:0;
table-layout:auto}
.dsx.dsx th,.dsx.dsx td{padding:1px 10px 1px 0;text-align:right;vertical-align:top;border:0;
background:none;color:inherit;white-space:nowrap}
.dsx.dsx th{font-weight:600}
.dsx.dsx.dsx thead tr{border-bottom:1px solid var(--dsx-line)}
.dsx.dsx.dsx .l{text-align:left}
.dsx.dsx .w{white-space:normal;overflow-wrap:break-word;min-width:8em}
.dsx.dsx.dsx tbody tr{background:none}
.dsx.dsx.dsx tr:hover>td{background:var(--dsx-shade)}
.dsx .key{display:inline-block;min-width:15px;padding:0 3px;text-align:center;font-size:var(--dsx-tiny);
forced-color-adjust:none}
.dsx .times,.dsx .tag{border:1px solid var(--dsx-line);border-radius:3px;padding:0 4px;font-size:var(--dsx-tiny)}
.dsx .tag{border:1px dashed currentColor;padding:0 3px}
.dsx .bar{display:flex;height:calc(var(--dsx-size)*16/13);min-width:2px}
.dsx .bar span{overflow:hidden;text-align:center;font-size:var(--dsx-tiny);line-height:calc(var(--dsx-size)*16/13);
min-width:1px}
.dsx .scale span{display:inline-flex;vertical-align:-2px;margin:0 6px}
.dsx .scale span span{width:14px;height:12px;margin:0}
.dsx.dsx .bars{width:100%}
.dsx .stacks{container-type:inline-size}
@container (max-width:520px){.dsx.dsx .stacks :is(table,tbody,tr,td){display:block}
.dsx.dsx .stacks thead{display:none}
.dsx.dsx .stacks td{text-align:left;white-space:normal}
.dsx.dsx .stacks td:first-child{font-weight:600}
.dsx.dsx .stacks td+td::before{content:attr(data-of) ": ";color:var(--dsx-dim)}}
.dsx.dsx .bars td.track{width:42%;min-width:100px}
"""


AXIS_STYLE = """
:is(.dsx,.dsx-tree) .thin{display:flex;height:9px;margin-top:5px;background:var(--dsx-shade)}
:is(.dsx,.dsx-tree) .thin i{min-width:1px}
""" + "".join(f":is(.dsx,.dsx-tree) .a{i}{{{Mark('', *colors).css}}}\n" for i, colors in enumerate(AXES))
"""CSS of the thin bars in the rows of a tree, and of the segments of bars by axis."""


HEAT_STYLE = f":is(.dsx-grid,.dsx-scale){{--dsx-heat:{SHADE}}}\n"
"""CSS of the hue that a widget's heatmap mixes with the color of the page."""


def heat(percent: int) -> str:
    """Return the CSS of a heatmap's cell, whose shade is from 0 (the color of the page) to 100 percent."""
    return f"background:color-mix(in srgb,{SHADE} {percent}%,transparent)"
