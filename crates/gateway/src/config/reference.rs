//! The tables of `docs/reference/config.md`, made from the table of settings.
//!
//! A test compares the page with them. `ONCEKEY_BLESS=1 cargo test -p oncekey-gateway config`
//! writes them.

use std::fmt::Write as _;

use super::kind::Kind;
use super::preset::PRESETS;
use super::problem::anchor;
use super::settings::{ROOT, Setting, Unset};

/// Everything between the marks of the page.
fn tables() -> String {
    let mut out = "## The file\n\n".to_owned();
    let single = ROOT.iter().filter(|setting| setting.kind.inner().is_none());
    rows(&mut out, single, "");
    for setting in &ROOT {
        let Setting { name, about, .. } = setting;
        let Some(inner) = setting.kind.inner() else { continue };
        let many = matches!(setting.kind, Kind::Tables(_));
        let title = if many { format!("[[{name}]]") } else { format!("[{name}]") };
        write!(out, "## `{title}`\n\n<a id=\"{name}\"></a>{about}").unwrap();
        match *name {
            "defaults" => {
                out.push_str(" It has the members of `[[route]]`, without `name` and `match`.\n\n");
            }
            name => {
                out.push_str("\n\n");
                rows(&mut out, inner.iter(), &format!("{name}."));
            }
        }
    }
    out.push_str("## Presets\n\nWhat `preset` sets:\n");
    for (name, text) in PRESETS {
        write!(out, "\n`{name}`:\n\n```toml\n{text}```\n").unwrap();
    }
    out
}

fn rows<'s>(out: &mut String, settings: impl Iterator<Item = &'s Setting>, prefix: &str) {
    out.push_str("| setting | may be | if not set | means |\n|---|---|---|---|\n");
    fn add(out: &mut String, setting: &Setting, prefix: &str) {
        let path = format!("{prefix}{}", setting.name);
        if let Kind::Table(inner) = setting.kind {
            for setting in inner {
                add(out, setting, &format!("{path}."));
            }
            return;
        }
        let (anchor, kind) = (anchor(&path), setting.kind.describe().replace('|', "\\|"));
        let shown = path.strip_prefix("route.").unwrap_or(&path);
        let unset = match setting.unset {
            Unset::Is(text) => format!("`{text}`"),
            Unset::Nothing { example } => format!("nothing; example: `{example}`"),
            Unset::Refused { example } => format!("an error; example: `{example}`"),
        };
        let about = setting.about;
        writeln!(out, "| <a id=\"{anchor}\"></a>`{shown}` | {kind} | {unset} | {about} |").unwrap();
    }
    for setting in settings {
        add(out, setting, prefix);
    }
    out.push('\n');
}

const BEGIN: &str = "<!-- from here on: made from the table of settings -->\n";

#[test]
fn the_reference_has_every_setting() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/config.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (written, shown) = page.split_once(BEGIN).expect("the mark");
    let expected = format!("\n{}", tables());
    if std::env::var_os("ONCEKEY_BLESS").is_some() {
        std::fs::write(&path, format!("{written}{BEGIN}{expected}")).unwrap();
        return;
    }
    assert_eq!(shown, expected, "run again with ONCEKEY_BLESS=1");
}
