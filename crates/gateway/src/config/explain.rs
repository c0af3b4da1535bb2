//! `oncekey config explain`: which route a request takes, and why.

use http::Method;
use serde_json::{Value as Json, json};

use super::show::{lines, members};
use super::{Config, Values};
use crate::route::{Methods, Pattern, Route, RouteTable, is_odd, method};

/// A request that somebody asks about, such as `POST /v1/charges/9/capture`.
#[derive(Debug)]
pub(super) struct Question {
    method: Method,
    path: String,
}

/// What is to be said about it.
#[derive(Debug)]
pub(super) struct Explanation {
    question: Question,
    /// The number of the route that wins.
    winner: Option<usize>,
    /// The numbers of others that are for the request too, and why they do not win.
    others: Vec<(usize, String)>,
}

impl Question {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let advice = "ask with a method and a path, such as \"POST /v1/charges\"";
        let (name, path) = text.trim().split_once(' ').ok_or(advice)?;
        let path = path.trim().split(['?', '#']).next().unwrap_or_default();
        if !path.starts_with('/') {
            return Err(advice.to_owned());
        }
        Ok(Self { method: method(name)?, path: path.to_owned() })
    }
}

impl Explanation {
    pub(super) fn new(question: Question, table: &RouteTable) -> Self {
        let Question { method, path } = &question;
        let found = table.find(method, path);
        let is_winner = |route: &Route| found.is_some_and(|found| std::ptr::eq(&**found, route));
        let winner = table.routes().iter().position(|route| is_winner(route));
        let mut others = Vec::new();
        for (number, route) in table.routes().iter().enumerate() {
            if is_winner(route) || !route.spec.pattern.is_for(path) {
                continue;
            }
            let why = match found {
                _ if !route.spec.methods.contain(method) => {
                    format!("it is for {}, not for {method}", route.spec.methods)
                }
                Some(winner) => why_not(&winner.spec.pattern, route),
                None => continue,
            };
            others.push((number, why));
        }
        Self { question, winner, others }
    }

    pub(super) fn text(&self, config: &Config) -> String {
        let Question { method, path } = &self.question;
        let mut out = match self.winner {
            Some(winner) => {
                let route = &config.routes[winner];
                format!("{method} {path} takes {}\n", called(config, winner))
                    + &format!("  mode: {}\n", route.mode.label())
            }
            None => format!("{method} {path} takes no route: it passes through, unprotected\n"),
        };
        if is_odd(path) {
            out += "  servers may read this path in several ways: the strictest route wins\n";
        }
        for (number, why) in &self.others {
            out += &format!("  not {}: {why}\n", called(config, *number));
        }
        if let Some(winner) = self.winner {
            out += "\n";
            out += &lines(&values(config).routes[winner], |_| true);
        }
        out
    }

    pub(super) fn json(&self, config: &Config) -> Json {
        let named = |number: usize| {
            let route = &config.routes[number];
            json!({ "name": &*route.name, "match": route.pattern.to_string() })
        };
        let others = self.others.iter().map(|(number, why)| {
            let mut other = named(*number);
            other["why_not"] = json!(why);
            other
        });
        json!({
            "method": self.question.method.as_str(),
            "path": self.question.path,
            "route": self.winner.map(named),
            "mode": self.winner.map(|winner| config.routes[winner].mode.label()),
            "others": others.collect::<Vec<_>>(),
            "settings": self.winner.map(|winner| members(&values(config).routes[winner], |_| true)),
        })
    }
}

fn values(config: &Config) -> &Values {
    config.values()
}

fn called(config: &Config, number: usize) -> String {
    let route = &config.routes[number];
    let pattern = route.pattern.to_string();
    let place = config.values().routes[number].place("match");
    let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
    match *route.name == *pattern {
        true => format!("`{pattern}`{place}"),
        false => format!("{} `{pattern}`{place}", route.name),
    }
}

/// The first difference decides.
fn why_not(winner: &Pattern, loser: &Route) -> String {
    let (order, place) = winner.compare(&loser.spec.pattern);
    let what = |pattern: &Pattern| {
        pattern.segments().get(place).map_or("the end", |segment| segment.label())
    };
    match order {
        std::cmp::Ordering::Less => {
            let (ours, theirs) = (what(winner), what(&loser.spec.pattern));
            format!("at segment {} it has {theirs}, the winner has {ours}", place + 1)
        }
        std::cmp::Ordering::Equal if loser.spec.methods == Methods::Any => {
            "the winner names the method".to_owned()
        }
        std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => {
            "the winner is stricter".to_owned()
        }
    }
}
