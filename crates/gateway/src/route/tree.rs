//! Finds the most specific pattern of a path, one segment after the other.
//!
//! At each segment the literal is tried first, then the parameter, then the tail. What is a dead
//! end further down is left again, so every node is visited at most once and a request costs at
//! most the size of the tree. Nothing is allocated.

use http::Method;

use super::pattern::{Methods, Pattern, Segment, same};

/// Patterns by their segments; each leads to a number.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    literals: Vec<(Box<[u8]>, Tree)>,
    parameter: Option<Box<Tree>>,
    ends: Ends,
    tails: Ends,
}

/// What is for exactly one set of paths.
#[derive(Debug, Default)]
struct Ends(Vec<(Methods, usize)>);

impl Tree {
    /// Adds a pattern. A request could not choose between two that are for the same paths and
    /// share a method: then nothing is added, and the number of the other is returned.
    pub(crate) fn add(
        &mut self,
        pattern: &Pattern,
        methods: &Methods,
        number: usize,
    ) -> Result<(), usize> {
        let mut node = self;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Literal(literal) => node.literal(literal),
                Segment::Parameter(_) => node.parameter.get_or_insert_default(),
                Segment::Tail(_) => return node.tails.add(methods, number),
            };
        }
        node.ends.add(methods, number)
    }

    fn literal(&mut self, literal: &[u8]) -> &mut Self {
        let place = self.literals.binary_search_by(|(known, _)| known.as_ref().cmp(literal));
        let at = place.unwrap_or_else(|at| {
            self.literals.insert(at, (literal.into(), Self::default()));
            at
        });
        &mut self.literals[at].1
    }

    /// The number of the most specific pattern. `path` has no slash at its beginning or end.
    pub(crate) fn find(&self, method: &Method, path: &[u8]) -> Option<usize> {
        self.walk(method, (!path.is_empty()).then_some(path))
    }

    fn walk(&self, method: &Method, path: Option<&[u8]>) -> Option<usize> {
        let Some(path) = path else {
            return self.ends.of(method).or_else(|| self.tails.of(method));
        };
        let (part, rest) = match path.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
            None => (path, None),
        };
        let literal = || {
            let at = self.literals.binary_search_by(|(known, _)| same(known, part)).ok()?;
            self.literals[at].1.walk(method, rest)
        };
        let parameter = || match (&self.parameter, part) {
            (Some(parameter), [_, ..]) => parameter.walk(method, rest),
            (Some(_) | None, _) => None,
        };
        literal().or_else(parameter).or_else(|| self.tails.of(method))
    }
}

impl Ends {
    fn add(&mut self, methods: &Methods, number: usize) -> Result<(), usize> {
        if let Some((_, other)) = self.0.iter().find(|(known, _)| known.collide(methods)) {
            return Err(*other);
        }
        self.0.push((methods.clone(), number));
        // A named method goes before `*`.
        self.0.sort_by_key(|(methods, _)| *methods == Methods::Any);
        Ok(())
    }

    fn of(&self, method: &Method) -> Option<usize> {
        self.0.iter().find(|(methods, _)| methods.contain(method)).map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::path::inside;
    use super::*;

    fn tree(patterns: &[Pattern]) -> Tree {
        let mut tree = Tree::default();
        for (number, pattern) in patterns.iter().enumerate() {
            // What collides is left out here and by the naive way alike: the first one stays.
            let _ = tree.add(pattern, pattern.methods(), number);
        }
        tree
    }

    /// What the documentation says, word by word: of all patterns that match, the most specific.
    fn naively(patterns: &[Pattern], method: &Method, path: &str) -> Option<usize> {
        let fits = |pattern: &Pattern| pattern.methods().contain(method) && pattern.is_for(path);
        let fitting = patterns.iter().enumerate().filter(|(_, pattern)| fits(pattern));
        let best = fitting.min_by(|(_, a), (_, b)| {
            let named = |pattern: &Pattern| *pattern.methods() == Methods::Any;
            a.compare(b).0.then(named(a).cmp(&named(b)))
        });
        best.map(|(number, _)| number)
    }

    fn patterns() -> impl Strategy<Value = Vec<Pattern>> {
        let segment = prop::sample::select(vec!["a", "b", "A", "{x}", "{y}", "%62"]);
        let path = (prop::collection::vec(segment, 0..4), any::<bool>());
        let methods = prop::sample::select(vec!["POST", "PATCH", "POST,PUT", "*"]);
        let pattern = (methods, path).prop_map(|(methods, (segments, tail))| {
            let tail = if tail { "/{rest...}" } else { "" };
            let text = format!("{methods} /{}{tail}", segments.join("/"));
            Pattern::parse(&text.replace("//", "/")).unwrap()
        });
        prop::collection::vec(pattern, 0..24)
    }

    fn paths() -> impl Strategy<Value = String> {
        let segment = prop::sample::select(vec!["a", "b", "B", "c", "", "%61", "%2F", "%"]);
        prop::collection::vec(segment, 0..5).prop_map(|parts| format!("/{}", parts.join("/")))
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_the_naive_way_finds(
            all in patterns(),
            path in paths(),
            method in prop::sample::select(vec![Method::POST, Method::PUT, Method::DELETE]),
        ) {
            let mut known = Tree::default();
            let alone: Vec<Pattern> = all
                .into_iter()
                .filter(|pattern| known.add(pattern, pattern.methods(), 0).is_ok())
                .collect();
            let found = tree(&alone).find(&method, inside(&path).unwrap());
            prop_assert_eq!(found, naively(&alone, &method, &path));
        }
    }

    #[test]
    fn of_two_patterns_for_the_same_requests_the_second_is_refused() {
        let mut tree = Tree::default();
        let mut add = |text: &str, number| {
            let pattern = Pattern::parse(text).unwrap();
            tree.add(&pattern, pattern.methods(), number)
        };
        assert_eq!(add("POST /v1/{id}", 0), Ok(()));
        assert_eq!(add("PATCH /v1/{id}", 1), Ok(()));
        assert_eq!(add("* /v1/{id}", 2), Ok(()), "named methods go first");
        assert_eq!(add("POST,PUT /v1/{key}/", 3), Err(0));
        assert_eq!(add("* /V1/{x}", 4), Err(2));
    }
}
