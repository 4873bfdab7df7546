/* A feed-forward network over blocks of rows; included once for each instruction set.
 *
 * NAME(x) gives the names, TARGET the instruction set, LANES the floats of one vector.
 *
 * Rows are taken in blocks of BLOCK_ROWS, a short last block with its last row repeated, so every row
 * goes through the same instructions: its numbers do not depend on how many others there are. Sums run
 * over the inputs in order, for BLOCK_OUTPUTS outputs at once.
 */

#if LANES > 1
typedef float NAME(Lanes) __attribute__((vector_size(4 * LANES)));
#else
typedef float NAME(Lanes);
#endif

enum { NAME(PARTS) = BLOCK_OUTPUTS / LANES };

/* out = bias + in * weights, for one block of rows */
TARGET static void NAME(dense)(const Step *step, const float *in, float *out)
{
    const int64_t inputs = step->inputs, stride = padded(inputs), out_stride = padded(step->outputs);
    for (int64_t first = 0; first < out_stride; first += BLOCK_OUTPUTS) {
        const NAME(Lanes) *weights = (const NAME(Lanes) *)(step->weights + first * (inputs + 1));
        const NAME(Lanes) *bias = (const NAME(Lanes) *)(step->bias + first);
        NAME(Lanes) sums[BLOCK_ROWS][NAME(PARTS)];
        for (int row = 0; row < BLOCK_ROWS; ++row)
            for (int part = 0; part < NAME(PARTS); ++part)
                sums[row][part] = bias[part];
        for (int64_t i = 0; i < inputs; ++i, weights += NAME(PARTS))
            for (int row = 0; row < BLOCK_ROWS; ++row)
                for (int part = 0; part < NAME(PARTS); ++part)
                    sums[row][part] += in[row * stride + i] * weights[part];
        for (int row = 0; row < BLOCK_ROWS; ++row)
            for (int part = 0; part < NAME(PARTS); ++part)
                ((NAME(Lanes) *)(out + row * out_stride + first))[part] = sums[row][part];
    }
}

/* The same for inputs of which few are 1 and all others 0: `places` [BLOCK_ROWS, codes] lists them. */
TARGET static void NAME(pick)(const Step *step, const int32_t *places, int64_t codes, float *out)
{
    const int64_t inputs = step->inputs, out_stride = padded(step->outputs);
    for (int64_t first = 0; first < out_stride; first += BLOCK_OUTPUTS) {
        const NAME(Lanes) *weights = (const NAME(Lanes) *)(step->weights + first * (inputs + 1));
        const NAME(Lanes) *bias = (const NAME(Lanes) *)(step->bias + first);
        NAME(Lanes) sums[BLOCK_ROWS][NAME(PARTS)];
        for (int row = 0; row < BLOCK_ROWS; ++row)
            for (int part = 0; part < NAME(PARTS); ++part)
                sums[row][part] = bias[part];
        for (int64_t code = 0; code < codes; ++code)
            for (int row = 0; row < BLOCK_ROWS; ++row)
                for (int part = 0; part < NAME(PARTS); ++part)
                    sums[row][part] += weights[places[row * codes + code] * NAME(PARTS) + part];
        for (int row = 0; row < BLOCK_ROWS; ++row)
            for (int part = 0; part < NAME(PARTS); ++part)
                ((NAME(Lanes) *)(out + row * out_stride + first))[part] = sums[row][part];
    }
}

TARGET static void NAME(activate)(const Step *step, int64_t count, float *restrict values)
{
    const float alpha = step->alpha;
    switch (step->kind) {
    case TANH:
        for (int64_t i = 0; i < count; ++i)
            values[i] = tanh_of(values[i]);
        break;
    case RELU:
        for (int64_t i = 0; i < count; ++i)
            values[i] = values[i] < 0.0f ? 0.0f : values[i];
        break;
    case SIGMOID:
        for (int64_t i = 0; i < count; ++i)
            values[i] = 1.0f / (1.0f + exp_of(-values[i]));
        break;
    case SILU:
        for (int64_t i = 0; i < count; ++i)
            values[i] = values[i] * (1.0f / (1.0f + exp_of(-values[i])));
        break;
    default:
        for (int64_t i = 0; i < count; ++i)
            values[i] = values[i] > 0.0f ? values[i] : alpha * (exp_of(values[i]) - 1.0f);
        break;
    }
}

/* The network on what was loaded for one block of rows; outputs [BLOCK_ROWS, padded(num_outputs)]. */
TARGET static const float *NAME(run)(const Network *network)
{
    float *values = network->scratch[0], *others = network->scratch[1];
    int64_t width = network->codes ? 0 : network->actor.num_inputs;
    for (int64_t i = 0; i < network->num_steps; ++i) {
        const Step *step = &network->steps[i];
        if (step->kind != LINEAR) {
            NAME(activate)(step, BLOCK_ROWS * padded(width), values);
            continue;
        }
        if (i == 0 && network->codes)
            NAME(pick)(step, network->places, network->actor.num_inputs, others);
        else
            NAME(dense)(step, values, others);
        float *done = others;
        others = values, values = done, width = step->outputs;
    }
    return values;
}
