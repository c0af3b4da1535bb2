//! Compares what was written with the table of settings.

use super::kind::{Kind, Wrong};
use super::node::{Data, Node, Table};
use super::problem::ConfigProblem;
use super::settings::{ROOT, Setting, Unset};
use super::similar::closest;

/// Everything that is wrong with single settings of a file.
pub(crate) fn check(file: &Table, name: &str) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    check_table(&ROOT, file, &Path::root(name), None, &mut problems);
    problems
}

/// Where in a file we are.
struct Path {
    /// `server.timeouts`
    dotted: String,
    /// `[server.timeouts]`, for people.
    header: String,
}

impl Path {
    fn root(name: &str) -> Self {
        Self { dotted: String::new(), header: name.to_owned() }
    }

    fn inside(&self, setting: &Setting) -> Self {
        let dotted = self.setting(setting.name);
        let many = matches!(setting.kind, Kind::Tables(_));
        let header = if many { format!("[[{dotted}]]") } else { format!("[{dotted}]") };
        Self { dotted, header }
    }

    fn setting(&self, name: &str) -> String {
        if self.dotted.is_empty() { name.to_owned() } else { format!("{}.{name}", self.dotted) }
    }

    /// Where the reference explains a setting. What routes and defaults share stands once.
    fn explained(&self, name: &str) -> String {
        let path = self.setting(name);
        match path.strip_prefix("defaults.") {
            Some(member) => format!("route.{member}"),
            None => path,
        }
    }
}

fn check_table(
    settings: &'static [Setting],
    table: &Table,
    path: &Path,
    node: Option<&Node>,
    problems: &mut Vec<ConfigProblem>,
) {
    for (name, node) in table {
        match settings.iter().find(|setting| setting.name == name) {
            Some(setting) => check_setting(setting, node, path, problems),
            None => problems.push(unknown(settings, name, node, path)),
        }
    }
    for setting in settings.iter().filter(|setting| !table.contains_key(setting.name)) {
        match (setting.unset, &setting.kind) {
            (Unset::Refused { example }, _) => {
                let Path { header, .. } = path;
                let message = format!("`{}` is missing in {header}", setting.name);
                let problem = ConfigProblem::error("missing-field", message)
                    .maybe_at(node.map(|node| &node.at))
                    .note(format!("write: {} = {example}", setting.name))
                    .about(&path.explained(setting.name));
                problems.push(problem);
            }
            // A table that is not there may still lack something.
            (Unset::Is(_) | Unset::Nothing { .. }, Kind::Table(inner)) => {
                check_table(inner, &Table::new(), &path.inside(setting), node, problems);
            }
            (Unset::Is(_) | Unset::Nothing { .. }, _) => {}
        }
    }
}

fn check_setting(
    setting: &'static Setting,
    node: &Node,
    path: &Path,
    problems: &mut Vec<ConfigProblem>,
) {
    match (&setting.kind, &node.data) {
        (Kind::Table(inner), Data::Table(table)) => {
            check_table(inner, table, &path.inside(setting), Some(node), problems);
        }
        (Kind::Tables(inner), Data::List(nodes)) => {
            for node in nodes {
                match node.as_table() {
                    Some(table) => {
                        check_table(inner, table, &path.inside(setting), Some(node), problems);
                    }
                    None => problems.extend(wrong(setting, node, path)),
                }
            }
        }
        _ => problems.extend(wrong(setting, node, path)),
    }
}

/// What a setting has to say about a value.
fn wrong(setting: &Setting, node: &Node, path: &Path) -> Vec<ConfigProblem> {
    let problem = |wrong: Wrong| {
        let Wrong { code, message, at, allowed, meant } = wrong;
        let problem = ConfigProblem::error(code, format!("`{}`: {message}", setting.name)).at(&at);
        let problem = match allowed.is_empty() {
            true => problem.note(format!("allowed: {}", setting.kind.describe())),
            false => problem.note(format!("allowed: {}", allowed.join(", "))),
        };
        problem.suggest(meant).about(&path.explained(setting.name))
    };
    setting.kind.read(node).err().unwrap_or_default().into_iter().map(problem).collect()
}

fn unknown(settings: &'static [Setting], name: &str, node: &Node, path: &Path) -> ConfigProblem {
    let Path { header, dotted } = path;
    let shown = name.escape_debug();
    let problem =
        ConfigProblem::error("unknown-field", format!("`{shown}` is not a setting of {header}"))
            .at(&node.name_at);
    let names = || settings.iter().map(|setting| setting.name);
    // `token` instead of `token_file`, and the other way round.
    let longer = || names().find(|known| !name.is_empty() && known.starts_with(name));
    let meant = closest(name, names()).or_else(longer);
    let meant = settings.iter().find(|setting| Some(setting.name) == meant);
    match meant {
        Some(meant) => {
            let allowed = match (meant.kind.words(), meant.kind.inner()) {
                ([], Some(inner)) => {
                    inner.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ")
                }
                ([], None) => meant.kind.describe(),
                (words, _) => words.join(", "),
            };
            problem
                .suggest(Some(meant.name))
                .note(format!("allowed: {allowed}"))
                .about(&path.explained(meant.name))
        }
        None => {
            let names: Vec<&str> = names().collect();
            let problem = problem.note(format!("allowed: {}", names.join(", ")));
            if dotted.is_empty() { problem } else { problem.about(dotted) }
        }
    }
}
