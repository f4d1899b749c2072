// The steps of a tree search in C++. trees.py has the same steps in numpy, with the same floating-point operations in
// the same order, and formulas.py explains the formulas. A test compares the trees of both bit by bit, so the compiler
// must not fuse or reorder operations.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

struct Buffer {
    int64_t roots, nodes, actions;
    char* begin;
};

struct Trees {  // the arrays of trees.py, at their places in the buffer
    const int64_t roots, nodes, actions;
    double *q, *prior, *total, *raw_value, *reward, *discount, *low, *high;
    int64_t *row, *chosen;
    int32_t *child, *visits, *parent, *action, *node_visits;

    explicit Trees(const Buffer& buffer) : roots(buffer.roots), nodes(buffer.nodes), actions(buffer.actions) {
        char* end = buffer.begin;
        const int64_t num_nodes = roots * nodes, num_edges = num_nodes * actions;
        for (double** array : {&q, &prior}) place(end, *array, num_edges);
        for (double** array : {&total, &raw_value, &reward, &discount}) place(end, *array, num_nodes);
        for (double** array : {&low, &high}) place(end, *array, roots);
        for (int64_t** array : {&row, &chosen}) place(end, *array, roots);
        for (int32_t** array : {&child, &visits}) place(end, *array, num_edges);
        for (int32_t** array : {&parent, &action, &node_visits}) place(end, *array, num_nodes);
    }

    template <typename T>
    static void place(char*& end, T*& array, int64_t num) {
        array = reinterpret_cast<T*>(end);
        end += num * sizeof(T);
    }
};

struct Rule {  // how actions are selected
    int64_t is_gumbel;
    double visit_init, value_scale;
    const double* table;           // PUCT: `exploration` of formulas.py; Gumbel: noise + logits of the roots, [B, A]
    const int32_t* needed_visits;  // Gumbel: the visits that an action of the root must have, [simulations, B]
};

struct Memory {  // an embedding has `parts` tensors, and each tensor has one address in each array
    int64_t parts;
    char** stores;         // of all nodes, [B, M, ...]
    char** selected;       // of the selected node of each tree, [B, ...]
    char** added;          // of the new node of each tree, [B, ...]
    const int64_t* bytes;  // the size of each tensor for one node of one tree
};

struct Model {  // a compiled `recurrent` of model.py: its inputs are the selected embeddings and the chosen actions
    const char* (*call)(int64_t, char* const*, const int64_t*, char* const*, const int64_t*);
    char* const* inputs;
    char* const* outputs;
    const int64_t* steps;
};

static const double INFINITE = std::numeric_limits<double>::infinity();

// Replace each x by e^x, for x <= 0, as `exp` of formulas.py. The loop has no branches, so that it can be vectorised.
static inline void exponentials(double* x, int64_t num) {
    static const double SHIFT = 6755399441055744.;  // x + SHIFT rounds x to an integer, which is in the last bits
    static const double TAYLOR[] = {1. / 3628800, 1. / 362880, 1. / 40320, 1. / 5040, 1. / 720, 1. / 120,
                                    1. / 24,      1. / 6,      1. / 2,     1.,        1.};
    for (int64_t a = 0; a < num; a++) {
        const double safe = x[a] > -700. ? x[a] : -700.;
        const double shifted = safe * 1.4426950408889634 + SHIFT, power = shifted - SHIFT;
        const double rest = (safe - power * 6.93147180369123816490e-01) - power * 1.90821492927058770002e-10;
        double result = TAYLOR[0];
        for (int i = 1; i < 11; i++) result = result * rest + TAYLOR[i];
        int64_t bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        bits = static_cast<int64_t>(static_cast<uint64_t>(bits + 1023) << 52);
        double factor;  // 2^power
        std::memcpy(&factor, &bits, sizeof factor);
        x[a] = x[a] > -700. ? result * factor : 0.;
    }
}

// Write the probabilities of the logits into `prior`.
static void softmax(const float* logits, double* prior, int64_t actions) {
    double most = -INFINITE, sum = 0.;
    for (int64_t a = 0; a < actions; a++) most = logits[a] > most ? logits[a] : most;
    for (int64_t a = 0; a < actions; a++) prior[a] = logits[a] - most;
    exponentials(prior, actions);
    for (int64_t a = 0; a < actions; a++) sum += prior[a];
    sum = 1. / sum;
    for (int64_t a = 0; a < actions; a++) prior[a] *= sum;
}

// Add the return of a new node to all its ancestors, and update Q and the numbers of visits on the way.
static void back_up(const Trees& t, int64_t tree, int64_t node) {
    const int64_t first = tree * t.nodes;
    double returns = t.raw_value[first + node];
    for (int64_t at = node; at > 0;) {
        const int64_t i = first + at, up = t.parent[i], edge = (first + up) * t.actions + t.action[i];
        const double q = t.reward[i] + t.discount[i] * (t.total[i] / t.node_visits[i]);
        returns = t.reward[i] + t.discount[i] * returns;
        t.q[edge] = q;
        t.visits[edge] += 1;
        t.low[tree] = q < t.low[tree] ? q : t.low[tree];
        t.high[tree] = q > t.high[tree] ? q : t.high[tree];
        t.total[first + up] += returns;
        t.node_visits[first + up] += 1;
        at = up;
    }
}

// Return the first action whose score is at most 1e-6 below the largest.
static inline int64_t first_best(const double* scores, int64_t actions) {
    double most = -INFINITE;
    for (int64_t a = 0; a < actions; a++) most = scores[a] > most ? scores[a] : most;
    for (int64_t a = 0; a < actions; a++)
        if (scores[a] >= most - 1e-6) return a;
    return 0;
}

// Select a node and an action of one tree: from the root on, follow the best action until an action has no child.
// `score(row, edge)` writes the scores of a node's actions into `scores`. `row` is the index of the node among the
// nodes of all trees, and `edge` is the index of the node's first action among the actions of all these nodes.
template <typename Score>
static void walk(const Trees& t, int64_t tree, const double* scores, Score score) {
    int64_t node = 0;
    do {
        const int64_t row = tree * t.nodes + node, edge = row * t.actions;
        score(row, edge);
        const int64_t action = first_best(scores, t.actions);
        t.row[tree] = row;
        t.chosen[tree] = action;
        node = t.child[edge + action];
    } while (node > 0);
}

// The function sigma(completed value) of one node, as `sigma_of` of formulas.py. `mixed` is the mixed value.
struct Sigma {
    double mixed, low, factor, most;

    Sigma(const Trees& t, int64_t row, int64_t edge, const Rule& rule) {
        const int32_t* visits = t.visits + edge;
        const double *q = t.q + edge, *prior = t.prior + edge;
        double weight = 0., weighted = 0., high = -INFINITE;
        int64_t num = 0;
        int32_t largest = 0;
        for (int64_t a = 0; a < t.actions; a++) {
            weight += visits[a] > 0 ? prior[a] : 0.;
            weighted += visits[a] > 0 ? prior[a] * q[a] : 0.;
            num += visits[a];
            largest = visits[a] > largest ? visits[a] : largest;
        }
        weight = num > 0 ? weight : 1.;
        mixed = (t.raw_value[row] * weight + num * weighted) / (weight * t.node_visits[row]);
        low = INFINITE;
        for (int64_t a = 0; a < t.actions; a++) {
            const double completed = visits[a] > 0 ? q[a] : mixed;
            low = prior[a] > 0. && completed < low ? completed : low;
            high = prior[a] > 0. && completed > high ? completed : high;
        }
        factor = (rule.visit_init + largest) * rule.value_scale / (high - low > 1e-8 ? high - low : 1e-8);
        most = factor * (high - low);
    }

    double operator()(int32_t visits, double q) const { return factor * ((visits > 0 ? q : mixed) - low); }
};

// Write the improved policy of the node whose first action has the index `edge`.
static inline void improved_policy(const Trees& t, const Sigma& sigma, int64_t edge, double* policy) {
    double sum = 0.;
    for (int64_t a = 0; a < t.actions; a++) policy[a] = sigma(t.visits[edge + a], t.q[edge + a]) - sigma.most;
    exponentials(policy, t.actions);
    for (int64_t a = 0; a < t.actions; a++) {
        policy[a] = t.prior[edge + a] > 0. ? t.prior[edge + a] * policy[a] : 0.;
        sum += policy[a];
    }
    sum = 1. / sum;
    for (int64_t a = 0; a < t.actions; a++) policy[a] *= sum;
}

// Add the node with index `node` to each tree, from the model's results, and update its ancestors.
static void grow(const Trees& t, int64_t node, const float* reward, const float* discount, const float* logits,
                 const float* value) {
    for (int64_t tree = 0; tree < t.roots; tree++) {
        const int64_t i = tree * t.nodes + node;
        softmax(logits + tree * t.actions, t.prior + i * t.actions, t.actions);
        t.raw_value[i] = t.total[i] = value[tree];
        t.node_visits[i] = 1;
        if (node == 0) continue;
        t.parent[i] = t.row[tree] - tree * t.nodes;
        t.action[i] = t.chosen[tree];
        t.child[t.row[tree] * t.actions + t.chosen[tree]] = node;
        t.reward[i] = reward[tree];
        t.discount[i] = discount[tree];
        back_up(t, tree, node);
    }
}

// Select a node and an action of each tree by MuZero's scores.
static void select_puct(const Trees& t, const double* exploration) {
    std::vector<double> scores(t.actions);
    for (int64_t tree = 0; tree < t.roots; tree++) {
        const double low = t.low[tree], high = t.high[tree], width = high > low ? high - low : 1.;
        walk(t, tree, scores.data(), [&](int64_t row, int64_t edge) {
            const int32_t* visits = t.visits + edge;
            const double *q = t.q + edge, *prior = t.prior + edge, factor = exploration[t.node_visits[row]];
            for (int64_t a = 0; a < t.actions; a++) {
                const double value = (visits[a] > 0 && high > low ? q[a] - low : 0.) / width;
                scores[a] = prior[a] > 0. ? value + prior[a] * factor / (visits[a] + 1.) : -INFINITE;
            }
        });
    }
}

// Select a node and an action of each tree by Gumbel MuZero's scores. `needed_visits` is for this simulation, [B].
static void select_gumbel(const Trees& t, const Rule& rule, const int32_t* needed_visits) {
    std::vector<double> scores(t.actions);
    for (int64_t tree = 0; tree < t.roots; tree++) {
        walk(t, tree, scores.data(), [&](int64_t row, int64_t edge) {
            const int32_t* visits = t.visits + edge;
            const double *q = t.q + edge, *prior = t.prior + edge, *noisy = rule.table + tree * t.actions;
            const bool is_root = row == tree * t.nodes;
            if (!is_root && t.node_visits[row] == 1) {  // no action was visited, so the improved policy is the prior
                double sum = 0.;
                for (int64_t a = 0; a < t.actions; a++) sum += prior[a];
                sum = 1. / sum;
                for (int64_t a = 0; a < t.actions; a++) scores[a] = prior[a] > 0. ? prior[a] * sum : -INFINITE;
                return;
            }
            const Sigma sigma(t, row, edge, rule);
            if (is_root) {
                for (int64_t a = 0; a < t.actions; a++) {
                    const bool is_considered = prior[a] > 0. && visits[a] == needed_visits[tree];
                    scores[a] = is_considered ? noisy[a] + sigma(visits[a], q[a]) : -INFINITE;
                }
                return;
            }
            improved_policy(t, sigma, edge, scores.data());
            const double share = 1. / t.node_visits[row];
            for (int64_t a = 0; a < t.actions; a++)
                scores[a] = prior[a] > 0. ? scores[a] - visits[a] * share : -INFINITE;
        });
    }
}

// Copy the embeddings of new nodes into the stores.
static void store(const Trees& t, const Memory& memory, int64_t node) {
    for (int64_t i = 0; i < memory.parts; i++) {
        const int64_t bytes = memory.bytes[i];
        for (int64_t tree = 0; tree < t.roots; tree++)
            std::memcpy(memory.stores[i] + (tree * t.nodes + node) * bytes, memory.added[i] + tree * bytes, bytes);
    }
}

// Select a node and an action of each tree, and copy the embeddings of the selected nodes.
static void choose_in(const Trees& t, const Rule& rule, const Memory& memory, int64_t simulation) {
    if (rule.is_gumbel)
        select_gumbel(t, rule, rule.needed_visits + simulation * t.roots);
    else
        select_puct(t, rule.table);
    for (int64_t i = 0; i < memory.parts; i++) {
        const int64_t bytes = memory.bytes[i];
        for (int64_t tree = 0; tree < t.roots; tree++)
            std::memcpy(memory.selected[i] + tree * bytes, memory.stores[i] + t.row[tree] * bytes, bytes);
    }
}

// Add a node with its embedding to each tree, and choose for the next simulation.
static void advance_in(const Trees& t, const Rule& rule, const Memory& memory, int64_t node, const float* reward,
                       const float* discount, const float* logits, const float* value) {
    store(t, memory, node);
    grow(t, node, reward, discount, logits, value);
    if (node + 1 < t.nodes) choose_in(t, rule, memory, node);
}

// The functions that compiled.py calls. The class `Plain` in trees.py describes the functions without a comment.
extern "C" {

void plant(const Buffer* buffer, const Memory* memory, const float* logits, const float* value) {
    const Trees t(*buffer);
    std::fill(t.low, t.low + t.roots, INFINITE);
    std::fill(t.high, t.high + t.roots, -INFINITE);
    store(t, *memory, 0);
    grow(t, 0, nullptr, nullptr, logits, value);
}

void choose(const Buffer* buffer, const Memory* memory, const Rule* rule, int64_t simulation) {
    choose_in(Trees(*buffer), *rule, *memory, simulation);
}

void advance(const Buffer* buffer, const Memory* memory, const Rule* rule, int64_t node, const float* reward,
             const float* discount, const float* logits, const float* value) {
    advance_in(Trees(*buffer), *rule, *memory, node, reward, discount, logits, value);
}

// Make all remaining simulations; the new nodes begin with the index `node`. Return an error message, or null.
const char* simulate(const Buffer* buffer, const Memory* memory, const Rule* rule, int64_t node, const Model* model) {
    auto outputs = reinterpret_cast<const float* const*>(model->outputs);
    const Trees t(*buffer);
    for (; node < t.nodes; node++) {
        const char* error = model->call(1, model->inputs, model->steps, model->outputs, model->steps);
        if (error != nullptr) return error;
        advance_in(t, *rule, *memory, node, outputs[0], outputs[1], outputs[2], outputs[3]);
    }
    return nullptr;
}

void finish_gumbel(const Buffer* buffer, const Rule* rule, int64_t* action, double* policy) {
    const Trees t(*buffer);
    std::vector<double> scores(t.actions);
    for (int64_t tree = 0; tree < t.roots; tree++) {
        const int64_t row = tree * t.nodes, edge = row * t.actions;
        const int32_t *visits = t.visits + edge, most = *std::max_element(visits, visits + t.actions);
        const Sigma sigma(t, row, edge, *rule);
        for (int64_t a = 0; a < t.actions; a++) {
            const bool is_last = t.prior[edge + a] > 0. && visits[a] == most;
            scores[a] = is_last ? rule->table[tree * t.actions + a] + sigma(visits[a], t.q[edge + a]) : -INFINITE;
        }
        action[tree] = first_best(scores.data(), t.actions);
        improved_policy(t, sigma, edge, policy + tree * t.actions);
    }
}
}
